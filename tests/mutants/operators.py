"""Mutants of a module: small mistakes that a person could make, one at a time.

What has no behaviour to test is left as it is: annotations, docstrings, decorators, assertions, log lines, messages of
errors, and constants of a module, which are measured rather than right.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SILENT_CALLS = ("log.", "logging.", "TypeVar", "NewType", "ContextVar")


@dataclass(frozen=True)
class Mutant:
    """A module with one mistake."""

    path: str
    """The module, relative to the repository."""
    line: int
    """Where its statement begins, from 1."""
    end_line: int
    """Where what is replaced ends."""
    function: str
    """Qualified name of the function or class around it; empty at the top of the module."""
    before: str
    """What stands there, on one line."""
    after: str
    """What the mutant has in its place."""
    start: int
    """First byte that is replaced."""
    end: int
    """The byte behind."""

    @property
    def name(self) -> str:
        """Return what tells it from others for as long as the function stays: no line number."""
        return f"{self.path}:{self.function}: {self.before} -> {self.after}"

    def applied_to(self, source: bytes) -> bytes:
        """Return the module with the mistake."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a module in the order of its lines; none is there twice."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    found = {(mutant.start, mutant.end, mutant.after): mutant for mutant in finder.found}
    return sorted(found.values(), key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def mutants_below(root: Path, places: tuple[str, ...]) -> list[Mutant]:
    """Return the mutants of all modules of some folders and files, given relative to the repository."""
    files: list[Path] = []
    for place in places:
        files += [root / place] if place.endswith(".py") else sorted((root / place).glob("*.py"))
    return [mutant for file in files for mutant in mutants_of(file.relative_to(root).as_posix(), file.read_bytes())]


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._scope: list[str] = []
        self._num_functions = 0
        self._statement_line = 1

    def visit(self, node: ast.AST) -> None:
        """Find the mutants of a node and of what it holds."""
        if isinstance(node, ast.stmt):
            self._statement_line = node.lineno
            self._mutate_statement(node)
        elif isinstance(node, ast.expr):
            self._mutate_expression(node)
        super().visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Enter a class; its bases and decorators stay."""
        self._enter(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Enter a function; defaults, annotations and decorators stay."""
        self._num_functions += 1
        self._enter(node)
        self._num_functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave what marks the impossible."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave messages; their parts have no place of their own either."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave what an error says."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave the annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """Leave log lines and names of types."""
        if not ast.unparse(node.func).startswith(_SILENT_CALLS):
            self.generic_visit(node)

    def _enter(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.append(node.name)
        for child in node.body:
            self.visit(child)
        self._scope.pop()

    def _mutate_statement(self, node: ast.stmt) -> None:
        if not self._num_functions:
            return
        match node:
            case ast.Expr(value=ast.Call() as call) if not ast.unparse(call.func).startswith(_SILENT_CALLS):
                self._add(node, "pass")
            case ast.Expr(value=ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
                self._add(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                self._add(node, "pass")
            case ast.Continue():
                self._add(node, "break")
            case ast.Break():
                self._add(node, "continue")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                self._add(node, "return None")
            case ast.If() | ast.While():
                self._add(node.test, f"not ({ast.unparse(node.test)})")
        if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            changed = copy.deepcopy(node)
            changed.op = _ARITHMETIC[type(node.op)]()
            self._add(node, ast.unparse(changed))

    def _mutate_expression(self, node: ast.expr) -> None:
        for changed in _changed(node, is_in_function=self._num_functions > 0):
            text = ast.unparse(changed)
            is_atom = isinstance(changed, ast.Constant | ast.Call | ast.Set | ast.Dict | ast.Name)
            self._add(node, text if is_atom else f"({text})")

    def _add(self, node: ast.expr | ast.stmt, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        end = self._line_starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(self._source[start:end].decode().split())
        scope = ".".join(self._scope)
        self.found.append(Mutant(self._path, self._statement_line, node.end_lineno, scope, before, after, start, end))


def _changed(node: ast.expr, *, is_in_function: bool) -> Iterator[ast.expr]:
    """Yield an expression with one mistake at its top."""
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS.get(type(op), ()):
                yield ast.Compare(node.left, [other()], node.comparators)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            for index in range(len(node.values)):
                rest = node.values[:index] + node.values[index + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value) if is_in_function:
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
        case ast.Call(func=ast.Name(id=name)) if name in _TWINS:
            yield ast.Call(ast.Name(_TWINS[name]), node.args, node.keywords)
        case ast.Set(elts=elements) if len(elements) > 1:
            for index in range(len(elements)):
                yield ast.Set(elements[:index] + elements[index + 1 :])
        case ast.Dict(keys=keys, values=values) if len(keys) > 1:
            for index in range(len(keys)):
                yield ast.Dict(keys[:index] + keys[index + 1 :], values[:index] + values[index + 1 :])
