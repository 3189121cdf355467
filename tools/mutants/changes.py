"""Single changes of a source file: comparisons, arithmetic, constants, statements left out."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "qipf"

#: Functions whose numbers are only shown, and calls whose arguments are texts.
SHOWN = {"facts", "summary", "plot", "_shown", "_finding", "__repr__", "__str__"}
TEXTS = {"warn", "progress", "progress_bar"}

COMPARED: dict[type, list[type]] = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt], ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is], ast.In: [ast.NotIn], ast.NotIn: [ast.In],
}  # fmt: skip
COMPUTED: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
EXCHANGED = {"min": "max", "amin": "amax", "argmin": "argmax", "any": "all", "minimum": "maximum"}
EXCHANGED |= {value: name for name, value in EXCHANGED.items()}


class Mutant(NamedTuple):
    """One change of a file: bytes from `start` to `end` become `text`."""

    package: str
    file: str  # below src/qipf
    line: int
    code: str  # the line before the change
    mutation: str
    start: int
    end: int
    text: str

    def key(self) -> tuple[str, ...]:
        """What stays the same when other lines of the file change."""
        return self.package, self.file, self.code, self.mutation


def changes(node: ast.AST) -> Iterator[str]:
    """Source texts that may take the place of a node."""
    if isinstance(node, ast.Compare):
        for new in COMPARED.get(type(node.ops[0]), []):
            yield ast.unparse(ast.Compare(node.left, [new(), *node.ops[1:]], node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        yield ast.unparse(ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right))
        yield ast.unparse(node.left)
        if isinstance(node.op, ast.Mult | ast.Add):
            yield ast.unparse(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.BoolOp):
        yield ast.unparse(
            ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        )
        yield ast.unparse(node.values[0])
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float | bool):
        value = node.value
        if isinstance(value, bool):
            yield str(not value)
        elif isinstance(value, int):
            yield from (str(value + 1), str(value - 1))
        else:
            yield from ((str(2 * value), str(value / 2)) if value else ("1.0",))
    elif isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in EXCHANGED:
            other = EXCHANGED[name]
            new = (
                ast.Attribute(called.value, other)
                if isinstance(called, ast.Attribute)
                else ast.Name(other)
            )
            yield ast.unparse(ast.Call(new, node.args, node.keywords))
        if name in ("clamp", "clip", "clamp_") and isinstance(called, ast.Attribute):
            yield ast.unparse(called.value)


def mutants_of(package: str, path: Path) -> list[Mutant]:
    """All changes of a file."""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    found: list[Mutant] = []
    file = str(path.relative_to(SOURCE))

    def add(node: Any, text: str) -> None:
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(source[start:end].decode().split())
        code = lines[node.lineno - 1].decode().strip()
        found.append(
            Mutant(package, file, node.lineno, code, f"{before} → {text}", start, end, text)
        )

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.FunctionDef) and node.name in SHOWN:
            return
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in TEXTS:
            return
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("bar.update("):
            return
        for text in changes(node):
            add(node, f"({text})")
        if isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            add(node, "pass")
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            add(node.test, f"(not ({ast.unparse(node.test)}))")
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.AST):
                    visit(part)

    visit(ast.parse(source))
    return found
