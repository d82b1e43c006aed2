"""A file as a lock between processes; the system frees it when its holder ends, however that ends."""

from __future__ import annotations

import fcntl


def try_to_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Whether the lock is held now; None where the file system has no locks, as some network file systems have none."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # NFS has either word for a lock that another one holds
        return False
    except OSError:
        return None
    return True
