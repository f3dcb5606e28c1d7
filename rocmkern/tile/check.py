"""A check of a kernel's source: nothing consumed is used again, and stages go through their circle to its end.

The python target notices such a misuse when it happens. Compiled code would go on with storage that something else
has overwritten, so a kernel is walked through before it is compiled: statement by statement, into its device functions,
into both branches of a condition and twice through a loop (the second time is the next iteration). Conditions on
``cfg`` are decided, as they are when the kernel is compiled.

It reports only what it is sure of. Each consumption remembers the conditions under which it happens; a use is an error
if it happens whenever the consumption does, or the consumption whenever the use does. Where a stage is in its circle
(`language.windows`) is known as long as all ways there agree, and those through a loop any number of times. A kernel
whose source is not there, or that uses statements that are not known here, is not checked.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rocmkern.runtime.errors import TileError
from rocmkern.tile.language.kernel import DEVICE_FUNCTIONS, Config
from rocmkern.tile.language.operation import OF_FUNCTION, Operation
from rocmkern.tile.language.windows import Windows

#: Device functions may call each other this deep.
MAX_DEPTH = 16
#: Operations that are a step of a stage through its circle, and those that need its window in use.
CIRCLE = ("paged", "fetch", "acquire", "release", "finish")
PRODUCTS = ("dot_nt", "dot_nn", "dot", "dot_tn", "dot_nn_where")
OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
#: The same condition, with the other outcome.
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq, ast.GtE: ast.Lt, ast.LtE: ast.Gt, ast.NotIn: ast.In, ast.IsNot: ast.Is,
}  # fmt: skip

Facts = frozenset  # of (condition, outcome)


def check_consumed(kernel: Callable, cfg: Config) -> None:
    """Raise if a kernel uses what an operation has consumed.

    Parameters
    ----------
    kernel : callable
        A function marked by `kernel`.
    cfg : Config
        The configuration that it is compiled for.

    Raises
    ------
    TileError
        With the kernel, the line, the variable, and the operation that consumed it.
    """
    walker = _Walker(kernel)
    arguments = [walker.fresh(constant=cfg), *(walker.fresh() for _ in kernel.parameters)]  # type: ignore[attr-defined]
    try:
        walker.call(kernel, arguments, _State())
    except _Unknown:
        return


class _Unknown(Exception):
    """Something that this check does not understand."""


@dataclass(frozen=True)
class _Consumption:
    by: str
    line: int


@dataclass
class _State:
    """What is known at one point of the kernel.

    ``names`` maps variables to the values they hold (numbers: two variables may hold the same), ``windows`` a stage to
    where it is in its circle, if that is known, ``consumed`` maps a value to its consumptions and the facts under which
    each happens, ``facts`` are the conditions that hold here.
    """

    names: dict[str, Any] = field(default_factory=dict)
    windows: dict[int, Windows] = field(default_factory=dict)
    consumed: dict[int, dict[_Consumption, Facts]] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    def copy(self, *facts: Any) -> _State:
        consumed = {value: dict(by) for value, by in self.consumed.items()}
        return _State(dict(self.names), dict(self.windows), consumed, self.facts | set(facts))


@dataclass
class _Frame:
    """One call of a function."""

    fn: Callable
    first_line: int
    returns: list[tuple[_State, Any]] = field(default_factory=list)
    breaks: list[list[_State]] = field(default_factory=list)
    continues: list[list[_State]] = field(default_factory=list)


class _Walker:
    def __init__(self, kernel: Callable):
        self.kernel = kernel
        self.numbers = itertools.count()
        self.kinds: dict[int, str] = {}  # of values: Tile, Operand, Stage, where known
        self.constants: dict[int, Any] = {}
        self.frames: list[_Frame] = []

    def fresh(self, kind: str | None = None, constant: Any = None) -> int:
        """A new value."""
        value = next(self.numbers)
        if kind in ("Tile", "Operand", "Stage"):
            self.kinds[value] = kind
        if constant is not None:
            self.constants[value] = constant
        return value

    # ------------------------------------------------------------------------------------------------------- calls

    def call(self, fn: Callable, arguments: list, state: _State) -> Any:
        """Walk through a function; ``state`` becomes what holds after the call."""
        definition, first_line = _definition(fn)
        parameters = [p.arg for p in (*definition.args.posonlyargs, *definition.args.args)]
        if len(parameters) != len(arguments) or len(self.frames) == MAX_DEPTH:
            raise _Unknown
        frame = _Frame(fn, first_line)
        self.frames.append(frame)
        inner = state.copy()
        inner.names = dict(zip(parameters, arguments, strict=True))
        end = self.block(definition.body, inner)
        if end is not None:
            frame.returns.append((end, None))
        if fn is self.kernel:
            for last, _ in frame.returns:
                self.check_end(definition, last)
        self.frames.pop()
        labels = [(("return", self.fresh()), True) for _ in frame.returns]
        after = self.join(zip((s for s, _ in frame.returns), labels, strict=True), state.facts)
        if after is None:
            raise _Unknown
        state.consumed, state.windows = after.consumed, after.windows
        results = [value for _, value in frame.returns]
        return results[0] if len(results) == 1 else self.merge_values(results)

    def check_end(self, definition: ast.FunctionDef, state: _State) -> None:
        """Refuse the end of the kernel while a stage has a window in use or on its way."""
        for name, value in state.names.items():
            if isinstance(value, int) and value in state.windows and not state.consumed.get(value):
                with self.naming(definition.body[-1], f"{name!r}: "):
                    state.windows[value].end()

    @contextlib.contextmanager
    def naming(self, node: ast.AST, what: str) -> Iterator[None]:
        """Name the kernel, the line and what is wrong in an error."""
        try:
            yield
        except TileError as error:
            raise TileError(f"{self.place(node)}: {what}{error}") from None

    def place(self, node: ast.AST) -> str:
        """The kernel and the line of something."""
        frame = self.frames[-1]
        inside = "" if frame.fn is self.kernel else f", device function {frame.fn.__name__}"
        return f"kernel {self.kernel.__name__}{inside}, line {self.line(node)} of {frame.fn.__code__.co_filename}"

    def merge_values(self, values: list) -> Any:
        """One value for several that may be it: of their kind, consumed by nothing yet."""
        if all(isinstance(v, tuple) and len(v) == len(values[0]) for v in values):
            return tuple(self.merge_values(list(v)) for v in zip(*values, strict=True))
        kinds = {self.kind(v) for v in values}
        return self.fresh(kinds.pop() if len(kinds) == 1 else None)

    def kind(self, value: Any) -> str | None:
        return self.kinds.get(value) if isinstance(value, int) else None

    # ------------------------------------------------------------------------------------------------------ states

    def join(self, states: Iterable[tuple[_State, Any]], facts: Facts) -> _State | None:
        """What holds after several ways came together; each comes with the fact that it was taken."""
        ways = list(states)
        if not ways:
            return None
        if len(ways) == 1:
            state = ways[0][0].copy()
            state.facts = facts
            return state
        result = _State(facts=facts, windows=self.agreed([s.windows for s, _ in ways]))
        for value in {v for s, _ in ways for v in s.consumed}:
            result.consumed[value] = self.join_consumed([(s.consumed.get(value, {}), label) for s, label in ways])
        for name in {n for s, _ in ways for n in s.names}:
            values = [s.names[name] for s, _ in ways if name in s.names]
            if all(v == values[0] for v in values):
                result.names[name] = values[0]
                continue
            merged = self.merge_values(values)
            result.names[name] = merged
            if isinstance(merged, int):
                self.agree(result, merged, [s.windows.get(s.names.get(name)) for s, _ in ways])
                here = [(s.consumed.get(s.names.get(name), {}), label) for s, label in ways]
                result.consumed[merged] = self.join_consumed(here)
        return result

    @staticmethod
    def agreed(ways: list[dict[int, Windows]]) -> dict[int, Windows]:
        """What is known of stages on all of several ways."""
        return {v: w for v, w in ways[0].items() if all(way.get(v) == w for way in ways)}

    @staticmethod
    def agree(state: _State, value: int, windows: list[Windows | None]) -> None:
        """A new value stands for stages that are at these places."""
        if windows[0] is not None and all(w == windows[0] for w in windows):
            state.windows[value] = windows[0]

    @staticmethod
    def join_consumed(ways: list[tuple[dict[_Consumption, Facts], Any]]) -> dict[_Consumption, Facts]:
        joined: dict[_Consumption, Facts] = {}
        for consumption in {c for consumed, _ in ways for c in consumed}:
            on = [(consumed[consumption], label) for consumed, label in ways if consumption in consumed]
            facts = Facts().union(*(f for f, _ in on))
            if len(on) < len(ways):
                facts = facts.union(label for _, label in on)
            joined[consumption] = facts
        return joined

    def use(self, value: Any, node: ast.expr, by: str, state: _State) -> None:
        """``by`` uses a value: an error if that was consumed."""
        if not isinstance(value, int):
            return
        for consumption, facts in state.consumed.get(value, {}).items():
            if facts <= state.facts or state.facts <= facts:
                what = f"{node.id!r}" if isinstance(node, ast.Name) else f"the result of {ast.unparse(node)!r}"
                again = any(fact[0][0] == "iteration" for fact in facts if fact not in state.facts)
                raise TileError(
                    f"{self.place(node)}: {what} was consumed by "
                    f"{consumption.by} in line {consumption.line} and cannot be used again by {by}"
                    + (" in the next iteration of the loop" if again else "")
                )

    def consume(self, value: Any, node: ast.expr, by: str, state: _State) -> None:
        if isinstance(value, int):
            state.consumed.setdefault(value, {})[_Consumption(by, self.line(node))] = state.facts

    def line(self, node: ast.AST) -> int:
        return self.frames[-1].first_line + node.lineno - 1  # type: ignore[attr-defined]

    # -------------------------------------------------------------------------------------------------- statements

    def block(self, statements: list[ast.stmt], state: _State) -> _State | None:
        """The state after some statements; None if control does not get there."""
        current: _State | None = state
        for statement in statements:
            if current is None:
                return None
            current = self.statement(statement, current)
        return current

    def statement(self, node: ast.stmt, state: _State) -> _State | None:
        if isinstance(node, ast.Expr):
            self.value(node.value, state)
        elif isinstance(node, ast.Assign):
            value = self.value(node.value, state)
            for target in node.targets:
                self.bind(target, value, state)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.bind(node.target, self.value(node.value, state), state)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            together = ast.copy_location(ast.BinOp(load, node.op, node.value), node)
            self.bind(node.target, self.value(together, state), state)
        elif isinstance(node, ast.If):
            return self.branches(node, state)
        elif isinstance(node, ast.For | ast.While) and not node.orelse:
            return self.loop(node, state)
        elif isinstance(node, ast.Return):
            value = self.value(node.value, state) if node.value is not None else None
            self.frames[-1].returns.append((state, value))
            return None
        elif isinstance(node, ast.Break | ast.Continue):
            ways = self.frames[-1].breaks if isinstance(node, ast.Break) else self.frames[-1].continues
            ways[-1].append(state)
            return None
        elif not isinstance(node, ast.Pass):
            raise _Unknown
        return state

    def bind(self, target: ast.expr, value: Any, state: _State) -> None:
        if isinstance(target, ast.Name):
            state.names[target.id] = self.fresh() if value is None else value
        elif isinstance(target, ast.Tuple):
            known = isinstance(value, tuple) and len(value) == len(target.elts)
            for t, v in zip(target.elts, value if known else [None] * len(target.elts), strict=True):
                self.bind(t, v, state)
        else:
            raise _Unknown

    def branches(self, node: ast.If, state: _State) -> _State | None:
        self.value(node.test, state)
        outcome = self.decided(node.test, state)
        if outcome is not None:
            return self.block(node.body if outcome else node.orelse, state)
        yes, no = self.condition(node.test, state)
        ways = [(self.block(body, state.copy(fact)), fact) for body, fact in ((node.body, yes), (node.orelse, no))]
        reached = [(s, fact) for s, fact in ways if s is not None]
        if len(reached) == 1:
            return reached[0][0]  # with its fact: the other branch does not come back
        return self.join(reached, state.facts)

    def loop(self, node: ast.For | ast.While, state: _State) -> _State | None:
        frame, before = self.frames[-1], state
        label = (("loop", self.fresh()), True)
        inside = state.facts | {label}
        frame.breaks.append([])
        end: _State | None = None
        for iteration in range(2):
            frame.continues.append([])
            state = state.copy(label)
            self.value(node.iter if isinstance(node, ast.For) else node.test, state)
            if isinstance(node, ast.For):
                self.bind(node.target, None, state)
            last = self.block(node.body, state)
            ways = frame.continues.pop() + ([last] if last is not None else [])
            merged = self.join(((s, (("way", self.fresh()), True)) for s in ways), inside)
            if merged is None:
                break
            end = merged
            if iteration == 0:
                state = self.next_iteration(before, end, inside)
                self.forget_moved(before, state)
        exits = frame.breaks.pop() + ([end] if end is not None else [])
        after = self.join(((s, (("way", self.fresh()), True)) for s in exits), before.facts)
        if after is None:
            return before
        self.forget_moved(before, after)
        return after

    @staticmethod
    def forget_moved(before: _State, state: _State) -> None:
        """Where a stage is after any number of iterations is known if an iteration brings it back to where it was."""
        for name, value in state.names.items():
            if name in before.names and before.windows.get(before.names[name]) != state.windows.get(value):
                state.windows.pop(value, None)

    def next_iteration(self, before: _State, end: _State, inside: Facts) -> _State:
        """The state at the start of the next iteration: what happens under a condition may not happen then."""
        state = end.copy()
        state.facts = before.facts
        earlier = (("iteration", self.fresh()), True)
        for value, consumed in end.consumed.items():
            state.consumed[value] = {}
            for consumption, facts in consumed.items():
                if consumption in before.consumed.get(value, {}):
                    state.consumed[value][consumption] = facts
                elif facts <= inside:
                    state.consumed[value][consumption] = facts | {earlier}
        return state

    # --------------------------------------------------------------------------------------------------- conditions

    def decided(self, test: ast.expr, state: _State) -> bool | None:
        """The outcome of a condition on ``cfg`` alone."""
        allowed = (
            ast.Attribute, ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp,
            ast.operator, ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context,
        )  # fmt: skip
        nodes = list(ast.walk(test))
        values = {n.id: state.names.get(n.id) for n in nodes if isinstance(n, ast.Name)}
        if not all(isinstance(n, allowed) for n in nodes) or not all(v in self.constants for v in values.values()):
            return None
        code = compile(ast.fix_missing_locations(ast.Expression(test)), "<condition>", "eval")
        try:
            return bool(eval(code, {"__builtins__": {}}, {name: self.constants[v] for name, v in values.items()}))
        except Exception:
            return None

    @staticmethod
    def condition(test: ast.expr, state: _State) -> tuple:
        """The two facts that a condition may give; equal conditions on equal values give equal facts."""
        outcome = True
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, outcome = test.operand, not outcome
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in OPPOSITES:
            opposite = OPPOSITES[type(test.ops[0])]()
            test, outcome = ast.Compare(test.left, [opposite], test.comparators), not outcome
        names = sorted({n.id for n in ast.walk(test) if isinstance(n, ast.Name)})
        key = ("condition", ast.unparse(test), tuple((n, state.names.get(n)) for n in names))
        return (key, outcome), (key, not outcome)

    # -------------------------------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr, state: _State) -> Any:
        """The value of an expression: a number, a tuple of values, or None where it is of no interest."""
        if isinstance(node, ast.Name):
            return state.names.get(node.id)
        if isinstance(node, ast.Tuple):
            return tuple(self.value(x, state) for x in node.elts)
        if isinstance(node, ast.Call):
            return self.called(node, state)
        if isinstance(node, ast.BinOp):
            return self.binary(node, state)
        if isinstance(node, ast.IfExp):
            return self.either(node, state)
        if not isinstance(
            node, ast.Constant | ast.Attribute | ast.Subscript | ast.Slice | ast.Compare | ast.BoolOp | ast.UnaryOp
        ):
            raise _Unknown
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, state)
        return None

    def binary(self, node: ast.BinOp, state: _State) -> Any:
        sides = [(n, self.value(n, state)) for n in (node.left, node.right)]
        symbol = OPERATORS.get(type(node.op))
        for side, value in sides:
            self.use(value, side, symbol or type(node.op).__name__, state)
            if symbol and self.kind(value) == "Tile":
                self.consume(value, side, symbol, state)
        return self.fresh("Tile" if symbol and self.kind(sides[0][1]) == "Tile" else None)

    def either(self, node: ast.IfExp, state: _State) -> Any:
        self.value(node.test, state)
        yes, no = self.condition(node.test, state)
        ways = [state.copy(yes), state.copy(no)]
        values = [self.value(n, s) for n, s in zip((node.body, node.orelse), ways, strict=True)]
        joined = self.join(zip(ways, (yes, no), strict=True), state.facts)
        assert joined is not None
        state.names, state.consumed, state.windows = joined.names, joined.consumed, joined.windows
        merged = self.merge_values(values)
        if isinstance(merged, int):
            self.agree(state, merged, [s.windows.get(v) for s, v in zip(ways, values, strict=True)])
        return merged

    def called(self, node: ast.Call, state: _State) -> Any:
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            raise _Unknown
        target = self.function(node.func, state)
        given = [(a, self.value(a, state)) for a in node.args]
        named = {k.arg: (k.value, self.value(k.value, state)) for k in node.keywords}
        if target in OF_FUNCTION:
            return self.operation(OF_FUNCTION[target], node, given, named, state)
        if target in DEVICE_FUNCTIONS and not named:
            return self.call(target, [self.fresh() if v is None else v for _, v in given], state)
        return self.fresh()

    def function(self, node: ast.expr, state: _State) -> Callable | None:
        """The function that an expression names, if it can be known."""
        path = []
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in state.names:
            return None
        fn: Any = self.frames[-1].fn
        if node.id in fn.__code__.co_freevars:
            return None  # a closure's variable: nothing that numba would take for an operation
        found = fn.__globals__.get(node.id)
        for name in reversed(path):
            found = getattr(found, name, None)
        return found if inspect.isfunction(found) else None

    def operation(self, target: Operation, call: ast.Call, given: list, named: dict, state: _State) -> Any:
        """Uses and consumptions of one operation of the tile language."""
        signature, name = target.signature, target.name
        try:
            arguments = signature.bind(*given, **named).arguments
        except TypeError:
            raise _Unknown from None
        for parameter, bound in arguments.items():
            several = signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL
            for node, value in bound if several else (bound,):
                self.use(value, node, name, state)
                # Where rows may be given as well as a tile, only a tile is consumed.
                is_sure = "Rows" not in signature.parameters[parameter].annotation or self.kind(value) == "Tile"
                if parameter in target.consumes and is_sure:
                    self.consume(value, node, name, state)
        result = self.result(signature.return_annotation, given)
        with self.naming(call, f"{name}: "):
            self.go_round(name, arguments, result, state)
        return result

    def result(self, annotation: str, given: list) -> Any:
        """New values for what an operation returns."""
        if annotation == "Tile | Rows":
            return self.fresh(next(filter(None, (self.kind(value) for _, value in given)), None))
        if annotation.startswith("tuple["):
            return tuple(self.fresh(kind.strip()) for kind in annotation[len("tuple[") : -1].split(","))
        return self.fresh(annotation)

    def go_round(self, name: str, arguments: dict[str, Any], result: Any, state: _State) -> None:
        """The step of a stage through its circle that an operation is."""
        if name == "stage":
            if len(self.frames) > 1:
                # A function that is compiled on its own would give out the same shared memory as its caller.
                raise TileError("made in a device function; make it in the kernel and pass it")
            cfg = self.constants.get(arguments["cfg"][1])
            paged = self.decided(arguments["paged"][0], state) if "paged" in arguments else False
            if isinstance(cfg, Config) and paged is not None:
                state.windows[result] = Windows(cfg.num_stages, needs_pages=paged)
        elif name in CIRCLE:
            windows = state.windows.get(arguments["st"][1])
            if windows is not None:
                state.windows[result] = getattr(windows, name)()
        elif name in PRODUCTS:
            for _, value in arguments.values():
                if value in state.windows:
                    state.windows[value].product()


@functools.cache
def _definition(fn: Callable) -> tuple[ast.FunctionDef, int]:
    """A function's syntax tree and the line where its source begins."""
    try:
        lines, first = inspect.getsourcelines(fn)
        (definition,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        raise _Unknown from None
    if not isinstance(definition, ast.FunctionDef) or definition.name != fn.__name__:
        raise _Unknown
    return definition, first
