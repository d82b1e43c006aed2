"""The imports between the modules of semifine, from their syntax trees.

``python -m tests.import_graph`` prints the figures in docs/explanation/architecture.md.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


@dataclass(frozen=True)
class Import:
    """One imported module: ``import a.b``, or the ``a.b`` of ``from a.b import c``."""

    module: str
    line: int
    in_function: bool


def module_files(source: Path = SOURCE) -> dict[str, Path]:
    """Returns the file of each module by its dotted name."""
    files = {}
    for file in sorted((source / "semifine").rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = file
    return files


@cache
def syntax_tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports_of(file: Path, known: frozenset[str] = frozenset()) -> tuple[Import, ...]:
    """Returns the imports of a file except those for type checkers only.

    ``from a import b`` is an import of ``a.b`` if ``known`` has a module of that name.
    """
    return tuple(_imports(syntax_tree(file), known, in_function=False))


def _imports(node: ast.AST, known: frozenset[str], *, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, in_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            package = child.module or ""
            names = {f"{package}.{alias.name}" for alias in child.names}
            modules = (names & known) | ({package} if names - known else set())
            yield from (Import(module, child.lineno, in_function) for module in sorted(modules))
        else:
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, known, in_function=inside)


def import_graph(*, functions: bool = True) -> dict[str, set[str]]:
    """Returns the modules that each module imports; with ``functions``, also the imports inside functions."""
    files = module_files()
    known = frozenset(files)
    return {
        name: {
            found.module
            for found in imports_of(file, known)
            if found.module in known and found.module != name and (functions or not found.in_function)
        }
        for name, file in files.items()
    }


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that import each other, directly or through others (Tarjan's algorithm).

    >>> cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    [['b', 'c']]
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def count_code_lines(file: Path) -> int:
    """Returns the number of lines without docstrings, comments and blank lines."""
    text, docstrings, code = file.read_text(encoding="utf-8"), set[int](), set[int]()
    for node in ast.walk(syntax_tree(file)):
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                docstrings |= set(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            code |= set(range(token.start[0], token.end[0] + 1)) if token.string else set()
    return len(code - docstrings)


def print_figures() -> None:
    """Prints the size of the source code and the number of import cycles."""
    files = module_files()
    lines = [len(file.read_text(encoding="utf-8").splitlines()) for file in files.values()]
    graph = import_graph()
    importers = {name: sum(name in targets for targets in graph.values()) for name in files}
    print(f"files: {len(files)}")
    print(f"lines: {sum(lines)}")
    print(f"lines of code: {sum(count_code_lines(file) for file in files.values())}")
    print(f"median lines per file: {statistics.median(lines):g}")
    print(f"modules with one importer: {sum(count == 1 for count in importers.values())}")
    print(f"import cycles at module level: {len(cycles(import_graph(functions=False)))}")
    print(f"import cycles with imports inside functions: {len(cycles(graph))}")


if __name__ == "__main__":
    print_figures()
