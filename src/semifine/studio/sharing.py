"""Who may use the studio, and from where: links of people with roles, the address, and TLS."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from semifine.data.csv_table import get_cell, read_csv
from semifine.errors import UserError, short_reason
from semifine.studio.queue import normalize_name

LABEL, REVIEW, TRAIN = ROLES = ("label", "review", "train")
"""Each role may do what the roles before it may do.

``label`` answers and undoes; ``review`` also settles conflicts, changes classes and imports labels; ``train`` also
starts and stops trainings and switches to their models.
"""
LOCAL_HOST = "127.0.0.1"
MIN_TOKEN_LENGTH = 22
"""Characters of a token with at least 128 random bits."""
_TOKEN = re.compile(rf"[A-Za-z0-9_-]{{{MIN_TOKEN_LENGTH},100}}")


@dataclass(frozen=True)
class Visitor:
    """The owner of a link.

    Args:
        name: The person's name; None if the page asks for it.
        role: One of ``ROLES``.

    Example:
        >>> Visitor("Ada", "review").may("label"), Visitor("Ada", "review").may("train")
        (True, False)
    """

    name: str | None
    role: str

    def may(self, role: str) -> bool:
        """Whether the visitor's role includes another role."""
        return ROLES.index(self.role) >= ROLES.index(role)


class Access:
    """The tokens of the studio and their owners.

    Args:
        visitors: The owner of each token.

    Example:
        >>> access = Access({"secret": Visitor("Ada", "label")})
        >>> access.find(b"secret"), access.find(b"other")
        (Visitor(name='Ada', role='label'), None)
    """

    def __init__(self, visitors: Mapping[str, Visitor]) -> None:
        self._visitors = {token.encode(): visitor for token, visitor in visitors.items()}

    def find(self, token: bytes) -> Visitor | None:
        """The owner of a token; None for another token. Takes equally long for all tokens."""
        found = [visitor for known, visitor in self._visitors.items() if secrets.compare_digest(known, token)]
        return found[0] if found else None


@dataclass(frozen=True)
class Address:
    """The address at which browsers reach the studio.

    Args:
        host: Name or IP address.
        port: The port.
        has_tls: Whether connections are encrypted.
    """

    host: str
    port: int
    has_tls: bool = False

    @property
    def scheme(self) -> str:
        return "https" if self.has_tls else "http"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        return self.host == "localhost" or (is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback)

    def hosts(self) -> list[str]:
        """Returns the valid ``Host`` headers. Browsers omit the default port.

        Example:
            >>> Address("127.0.0.1", 8000).hosts()
            ['127.0.0.1:8000', 'localhost:8000']
            >>> Address("192.168.1.20", 443, has_tls=True).hosts()
            ['192.168.1.20:443', '192.168.1.20']
        """
        names = [LOCAL_HOST, "localhost"] if self.host == LOCAL_HOST else [_bracketed(self.host.lower())]
        default = 443 if self.has_tls else 80
        return [f"{name}:{self.port}" for name in names] + (names if self.port == default else [])

    def url(self, token: str) -> str:
        """Returns the link with a token.

        Example:
            >>> Address("fd00::1", 8000).url("secret")
            'http://[fd00::1]:8000/secret/'
        """
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}/{token}/"


def is_ip(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def find_address() -> str:
    """Returns the address of this machine in its network. Sends nothing.

    Raises:
        UserError: If it has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: selects the interface with a route
            return str(probe.getsockname()[0])
        except OSError as error:
            raise UserError("This machine is in no network: name its address with --host.") from error


MAX_PORT = 65535


def listen(host: str, port: int) -> socket.socket:
    """Binds a socket. Port 0 selects a free port.

    Raises:
        UserError: If the host is not an address of this machine or the port cannot be used.
    """
    if is_ip(host) and ipaddress.ip_address(host).is_unspecified:
        raise UserError(f"--host {host} is no address that browsers can open: name the address of this machine.")
    remedy = "omit --port to use a free port" if host == LOCAL_HOST else "check --host and --port"
    if not 0 <= port <= MAX_PORT:  # some systems would take the remainder of a division
        raise UserError(f"Port {port} of {host} cannot be used (ports end at {MAX_PORT}); {remedy}.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"The address {host} or the port {port} is not valid ({error}).") from error
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserError(f"Port {port} of {host} cannot be used ({error}); {remedy}.") from error
    return listening


@dataclass(frozen=True)
class Certificate:
    """Files for TLS.

    Args:
        file: The certificate with its chain, in PEM format.
        key: The private key; None if it is in the file of the certificate.
    """

    file: Path
    key: Path | None = None

    def check(self) -> None:
        """Raises ``UserError`` if the files are not a certificate and its unencrypted key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.file, self.key, password="")
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise UserError(
                f"{self.file} is not a certificate with its key ({short_reason(error)}): give PEM files with "
                "--certificate and --key."
            ) from error


@dataclass(frozen=True)
class Person:
    """A person who gets a link.

    Args:
        name: The name in the log.
        role: One of ``ROLES``.
        token: The token of the link; None for a random one at each start.
    """

    name: str
    role: str
    token: str | None = None


def parse_person(text: str) -> Person:
    """Parses ``NAME:ROLE``.

    Example:
        >>> parse_person("Ada Lovelace:review")
        Person(name='Ada Lovelace', role='review', token=None)
    """
    name, _, role = text.rpartition(":")
    if role not in ROLES or not name:
        raise UserError(f"--person {text} must be NAME:ROLE, where ROLE is {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
    return Person(normalize_name(name), role)


def read_people(file: Path) -> list[Person]:
    """Reads a table with the columns ``name`` and ``role``, and optionally ``token``, which keeps a link the same.

    Example:
        >>> _ = Path("people.csv").write_text("name,role\\nAda,train\\nBo,label\\n")
        >>> [person.name for person in read_people(Path("people.csv"))]
        ['Ada', 'Bo']
    """
    try:
        table = read_csv(file)
    except OSError as error:
        raise UserError(f"Cannot read the people in {file}: {error.strerror or error}.") from error
    columns = [table.column(name) for name in ("name", "role", "token")]
    if columns[0] is None or columns[1] is None:
        raise UserError(f"{file} needs the columns name and role: name them in the first line.")
    people = []
    for line, cells in table.lines:
        name, role, token = (get_cell(cells, column) for column in columns)
        if role not in ROLES:
            raise UserError(f"{file}, line {line}: the role must be {', '.join(ROLES[:-1])} or {ROLES[-1]}.")
        if token and not _TOKEN.fullmatch(token):
            raise UserError(
                f"{file}, line {line}: a token needs at least {MIN_TOKEN_LENGTH} letters, digits, hyphens or "
                "underscores, chosen at random; leave it empty for a new one at each start."
            )
        people.append(Person(normalize_name(name), role, token or None))
    return people


def check_people(people: Sequence[Person]) -> None:
    """Raises ``UserError`` if there is nobody, or if two people have the same name or token."""
    if not people:
        raise UserError("--share needs people: name each with --person NAME:ROLE, or all in a table with --people.")
    for kind, values in (
        ("name", [person.name for person in people]),
        ("token", [person.token for person in people if person.token]),
    ):
        repeated = [value for value in values if values.count(value) > 1]
        if repeated:
            shown = f" {repeated[0]}" if kind == "name" else ""
            raise UserError(f"Two people have the same {kind}{shown}: each needs one of their own.")


def create_links(people: Iterable[Person]) -> dict[str, Visitor]:
    """Returns the visitor of each token; people without a token get a random one."""
    return {person.token or secrets.token_urlsafe(24): Visitor(person.name, person.role) for person in people}


class Link(NamedTuple):
    """A visitor and the URL to open."""

    visitor: Visitor
    url: str


@dataclass(frozen=True)
class Sharing:
    """Who reaches the studio at which address.

    Args:
        host: The name or IP address that people open.
        visitors: The owner of each token.
        certificate: The certificate for TLS; None for connections without encryption.
    """

    host: str
    visitors: Mapping[str, Visitor]
    certificate: Certificate | None = None


def local_sharing() -> Sharing:
    """One link with all roles that only this machine can reach. The page asks for the name.

    Example:
        >>> local_sharing().host
        '127.0.0.1'
    """
    return Sharing(LOCAL_HOST, {secrets.token_urlsafe(24): Visitor(None, TRAIN)})
