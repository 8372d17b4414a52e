"""Mutation operators: all small changes of a Python module that its tests should detect, as splices of its source.

Annotations, decorators, f-strings, docstrings and other strings are left as they are: changing them changes no
behaviour, or only the wording of a message.
"""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
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
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_SWAPPED = (
    ("min", "max"), ("amin", "amax"), ("nanmin", "nanmax"), ("argmin", "argmax"), ("minimum", "maximum"),
    ("clamp_min", "clamp_max"), ("any", "all"), ("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like"),
)  # fmt: skip
FUNCTIONS = dict(_SWAPPED) | {second: first for first, second in _SWAPPED}
CLIPS = {"minimum", "maximum", "clip"}  # np.clip(x, …): the clipped value is the first argument
CLAMPS = {"clamp", "clamp_", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_"}  # x.clamp(…)


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the bytes from start to end are replaced."""

    path: str
    operator: str
    line: int
    start: int
    end: int
    replacement: str

    def apply(self, source: str) -> str:
        """Return the source of the module with this change."""
        data = source.encode()
        return (data[: self.start] + self.replacement.encode() + data[self.end :]).decode()

    def diff(self, source: str) -> list[str]:
        """Return the changed lines, the original first: `- …`, `+ …`."""
        lines = difflib.ndiff(source.splitlines(), self.apply(source).splitlines())
        return [f"{line[0]} {line[2:].strip()}" for line in lines if line[0] in "-+"]


def mutants_of(path: str, source: str) -> list[Mutant]:
    """List all mutants of a module in source order, without those that change nothing or do not parse."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    original = ast.dump(ast.parse(source))
    mutants: dict[tuple[int, int, str], Mutant] = {}
    for node in _nodes(ast.parse(source)):
        for operator, (line, column), (end_line, end_column), text in _changes(node):
            start, end = starts[line - 1] + column, starts[end_line - 1] + end_column
            mutant = Mutant(path, operator, line, start, end, text)
            if _differs(mutant.apply(source), original):
                mutants.setdefault((start, end, text), mutant)
    return sorted(mutants.values(), key=lambda m: (m.start, m.end, m.replacement))


def _differs(source: str, original: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) != original
    except SyntaxError:
        return False


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all descendants of a syntax node whose change can affect behaviour."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_excluded(child):
                yield from _nodes(child)


def _is_excluded(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr():  # positions inside f-strings are wrong before Python 3.12
            return True
        case ast.keyword(arg="strict") | ast.If(test=ast.Name(id="TYPE_CHECKING")):  # zip(…, strict=True)
            return True
    return False


Change = tuple[str, tuple[int, int], tuple[int, int], str]  # operator, start, end, text


def _replace(operator: str, node: ast.AST, text: str) -> Change:
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return operator, (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield all changes of one syntax node, without changes of its children."""
    match node:
        case ast.Compare():
            yield from _compare(node)
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            yield _replace("arithmetic", node, _unparse(node, op=ARITHMETIC[type(node.op)]()))
        case ast.BoolOp():
            yield _replace("boolean", node, _unparse(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And()))
        case ast.UnaryOp():
            yield _replace("sign or negation", node, f"({ast.unparse(node.operand)})")
        case ast.Constant():
            yield from _constant(node)
        case ast.Call():
            yield from _call(node)
        case ast.If() | ast.While() | ast.IfExp():
            yield from _negate(node.test)
        case ast.comprehension():
            for test in node.ifs:
                yield from _negate(test)
        case ast.stmt():
            yield from _statement(node)


def _unparse(node: ast.expr, **changes: object) -> str:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return f"({ast.unparse(changed)})"


def _negate(test: ast.expr) -> Iterator[Change]:
    if not isinstance(test, ast.Compare | ast.UnaryOp):  # these nodes have their own changes
        yield _replace("condition", test, f"(not ({ast.unparse(test)}))")


def _compare(node: ast.Compare) -> Iterator[Change]:
    for i, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            yield _replace("comparison", node, _unparse(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]]))


def _constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield _replace("constant", node, repr(not node.value))
    elif isinstance(node.value, int) and node.value > 3:
        yield _replace("constant", node, repr(2 * node.value))
    elif isinstance(node.value, int):
        yield _replace("constant", node, repr(node.value + 1))
        if node.value:
            yield _replace("constant", node, repr(node.value - 1))
    elif isinstance(node.value, float):
        yield _replace("constant", node, repr(2 * node.value if node.value else 1.0))


def _call(node: ast.Call) -> Iterator[Change]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in FUNCTIONS:
        if isinstance(function, ast.Attribute):
            changed = _unparse(node, func=ast.Attribute(function.value, FUNCTIONS[name], ast.Load()))
        else:
            changed = _unparse(node, func=ast.Name(FUNCTIONS[name], ast.Load()))
        yield _replace("function", node, changed)
    is_method = isinstance(function, ast.Attribute)
    is_of_module = is_method and isinstance(function.value, ast.Name) and function.value.id in {"np", "torch", "F"}
    if node.args and name in CLIPS | CLAMPS and is_of_module:
        yield _replace("bounds", node, f"({ast.unparse(node.args[0])})")
    elif name in CLAMPS | {"clip"} and is_method:
        yield _replace("bounds", node, f"({ast.unparse(function.value)})")
        if len(node.args) == 2:
            for i in range(2):
                arguments = [ast.Constant(None) if i == j else argument for j, argument in enumerate(node.args)]
                yield _replace("bounds", node, _unparse(node, args=arguments))
    if name in CLAMPS | {"clip"} and len(node.keywords) > 1:
        for i in range(len(node.keywords)):
            yield _replace("bounds", node, _unparse(node, keywords=node.keywords[:i] + node.keywords[i + 1 :]))


def _statement(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Return(value=None) | ast.Raise() | ast.Expr(value=ast.Call() | ast.Yield() | ast.Await()):
            yield _replace("dropped statement", node, "pass")
        case ast.Return():
            yield _replace("dropped return", node, "return None")
        case ast.AugAssign():
            yield _replace("dropped statement", node, "pass")
            if type(node.op) in ARITHMETIC:
                changed = ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
                yield _replace("arithmetic", node, ast.unparse(changed))
        case ast.Assign() if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            yield _replace("dropped statement", node, "pass")
        case ast.Break():
            yield _replace("dropped statement", node, "continue")
        case ast.Continue():
            yield _replace("dropped statement", node, "pass")
