"""The models of a matrix file.

Only the *shape* of the file is described here: which keys exist, and of which type their values are. What depends on
the declared operations (which dimensions, features and arrays an operation has) is checked by `rocmkern.matrix.expand`,
with the same kind of error.

The JSON schema that editors use is made from these models by `rocmkern.matrix.json_schema`.
"""

from __future__ import annotations

import fnmatch
from datetime import date
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Text = Annotated[str, StringConstraints(min_length=3, strip_whitespace=True)]
Dtype = Literal["f32", "f16", "bf16"]
Category = Literal["quick", "full", "benchmark"]
Target = Literal["python", "cpu", "hip", "cuda"]
# What a row runs: the operation, its gradient (the operation that declares to be it), or one after the other.
Direction = Literal["forward", "backward", "both"]
Scalar = bool | int | float | str | None
Value = Scalar | list[Scalar]
# A dimension, and all elements of an array of a case: 4 TiB of float32, more than a machine of ours will have.
MAX_ELEMENTS = 2**40
Extent = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]
Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Size = Extent | list[Extent]
# The arrays that are made of a row's dimensions have at most MAX_ELEMENTS elements each, too.
Shape = Annotated[dict[str, Size], Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
BUDGET_LIMITS = ("vgpr", "lds", "scratch", "spills", "occupancy", "vector_per_matrix", "fma_share")


class Model(BaseModel):
    """Base of all models: unknown keys are errors, nothing is converted silently."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class Normal(Model):
    """Normal deviates, ``mean + std * N(0, 1)``."""

    kind: Literal["normal"]
    std: Positive = 1.0
    mean: Finite = 0.0


class Uniform(Model):
    """Uniform deviates in ``[low, high)``."""

    kind: Literal["uniform"]
    low: Finite = 0.0
    high: Finite = 1.0


class Large(Model):
    """Uniform deviates in ``[-amplitude, amplitude)``, for large logits."""

    kind: Literal["large"]
    amplitude: Positive


class Constant(Model):
    """The same value everywhere."""

    kind: Literal["constant"]
    value: Finite


class Ramp(Model):
    """``a * i + b`` over the flat index i."""

    kind: Literal["ramp"]
    a: Finite
    b: Finite = 0.0


class Wave(Model):
    """``factor * sin(step * i)`` (or cos, tan) over the flat index i."""

    kind: Literal["sin", "cos", "tan"]
    factor: Finite = 1.0
    step: Positive = 0.1


class Denormal(Model):
    """Subnormal numbers of the dtype, of both signs."""

    kind: Literal["denormal"]


class Values(Model):
    """A list of values, repeated over the flat index."""

    kind: Literal["values"]
    values: Annotated[list[float], Field(min_length=1)]


Generator = Annotated[
    Normal | Uniform | Large | Constant | Ramp | Wave | Denormal | Values,
    Field(discriminator="kind"),
]
# Generators by the name of the array; "all" stands for every array that is not named.
Inputs = Annotated[dict[Name, Generator], Field(min_length=1)]
# What they are is written in rocmkern.matrix.layouts. Arrays of a case have at most six axes.
MemoryVariant = Literal[
    "contiguous", "strided", "offset", "broadcast", "broadcast_last", "negative", "negative_last", "transposed",
    "padded",
    "repeated_1", "repeated_2", "repeated_3", "repeated_4", "repeated_5", "repeated_6",
    "reversed_1", "reversed_2", "reversed_3", "reversed_4", "reversed_5", "reversed_6",
    "doubled_1", "doubled_2", "doubled_3", "doubled_4", "doubled_5", "doubled_6",
    "transposed_1", "transposed_2", "transposed_3", "transposed_4", "transposed_5",
]  # fmt: skip
Memory = MemoryVariant | dict[Name, MemoryVariant]


class Masked(Model):
    """Values put where the mask hides them: they must not reach the output."""

    value: Literal["nan", "inf", "-inf"]
    where: Literal["hidden", "last_key"] = "hidden"


class Tolerance(Model):
    """``max|out - ref64| <= max(c * e, u * ulp(max|ref64|))`` for each output row, or a fixed absolute bound.

    With `dtypes` it holds for outputs of these dtypes only; the others keep c = u = 2. `loose` says why a bound is kept
    although everything that was recorded stays below a tenth of it; otherwise validation with results refuses that.
    """

    c: Positive | None = None
    u: Positive | None = None
    absolute: Positive | None = None
    dtypes: Annotated[list[Dtype], Field(min_length=1)] | None = None
    reason: Text
    loose: Text | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Tolerance:
        if self.absolute is not None and (self.c is not None or self.u is not None):
            raise ValueError("give either absolute, or c and u")
        if self.absolute is None and self.c is None and self.u is None:
            raise ValueError("give at least one of c, u, absolute")
        return self


class Targets(Model):
    """On which targets a row runs; elsewhere it is skipped with the reason."""

    only: Annotated[list[Target], Field(min_length=1)] | None = None
    skip: Annotated[list[Target], Field(min_length=1)] | None = None
    reason: Text

    @model_validator(mode="after")
    def _one_rule(self) -> Targets:
        if (self.only is None) == (self.skip is None):
            raise ValueError("give exactly one of only, skip")
        return self

    def allows(self, target: str) -> bool:
        """Whether a row with this condition runs on `target`."""
        return target in self.only if self.only is not None else target not in (self.skip or ())


class OneHot(Model):
    """Permission for inputs that make a softmax one-hot: they prove little, so the row says why it wants them."""

    reason: Text


class ExpectError(Model):
    """The error that a row with bad arguments must raise."""

    type: Text
    argument: Name


class Settings(Model):
    """What may be set for the whole file, an operation, a group or a row; the most specific one counts."""

    category: Category | None = None
    dtypes: Annotated[list[Dtype], Field(min_length=1)] | None = None
    inputs: Inputs | None = None
    # "each": every layout of every array of the declaration, one at a time, and some of all arrays at once.
    memory: Annotated[list[Memory], Field(min_length=1)] | Literal["each"] | None = None
    tolerance: Tolerance | None = None
    targets: Targets | None = None
    deadline_s: Positive | None = None


class Row(Settings):
    """One row: the cartesian product of its shapes, axes, variants, dtypes and memory layouts."""

    name: Name | None = None
    why: Text | None = None
    direction: Direction | None = None
    shape: Shape | None = None
    shapes: Annotated[list[Shape], Field(min_length=1)] | None = None
    axes: Annotated[dict[str, Annotated[list[Value], Field(min_length=1)]], Field(min_length=1)] | None = None
    features: dict[str, Value] | None = None
    variants: Annotated[list[dict[str, Value]], Field(min_length=1)] | None = None
    masked: Masked | None = None
    one_hot: OneHot | None = None
    arguments: dict[Name, Value] | None = None
    spoil: dict[Name, Name] | None = None
    expect_error: ExpectError | None = None
    peers: Annotated[list[Name], Field(min_length=1)] | None = None
    bars: Annotated[dict[Name, Positive], Field(min_length=1)] | None = None
    warm: bool | None = None
    # Every row of the result is the same bits in other batches, too, within batch_invariant().
    invariant: bool | None = None


class Group(Settings):
    """Rows of one operation that belong together, and why they exist."""

    why: Text
    operation: str
    # Of the rows that do not say it themselves; forward without it.
    direction: Direction | None = None
    shape: Shape | None = None
    features: dict[str, Value] | None = None
    rows: Annotated[list[Row], Field(min_length=1)]


class KnownFailure(Model):
    """Cases that are known to fail: they run, they must fail, and not for ever.

    ``cases`` is an id with ``*`` and ``?``. Where several fit a case, the one with the most characters that are no
    wildcards counts, and of two equal ones that which names targets.
    """

    cases: Annotated[str, StringConstraints(min_length=1)]
    targets: Annotated[list[Target], Field(min_length=1)] | None = None
    issue: Text
    expires: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]

    @field_validator("expires")
    @classmethod
    def _a_date(cls, value: str) -> str:
        date.fromisoformat(value)
        return value

    def fits(self, case: str) -> bool:
        """Whether a case id is meant."""
        return fnmatch.fnmatchcase(case, self.cases)

    @property
    def specificity(self) -> tuple[int, bool]:
        """What is larger for a rule that says more exactly what it means."""
        return sum(character not in "*?" for character in self.cases), self.targets is not None

    def expired(self, today: date | None = None) -> bool:
        """Whether the day is over up to which the failure is tolerated."""
        return (today or date.today()) > date.fromisoformat(self.expires)


class KernelBudget(Model):
    """What compiled kernels may need on AMD architectures, and what their main loops must be like.

    `rocmkern isa` checks it. The first four keys say for which kernels it holds; where several budgets match a kernel,
    all of them hold. Without any budget a kernel has no scratch memory, no spilled registers and no flat instructions,
    and fits into shared memory; scratch and spills may be allowed, with a reason.

    Attributes
    ----------
    kernel, arch : str
        Names, with ``*`` and ``?``.
    dtypes : list
        Element types of the kernel's first tensor; default: all.
    config : dict
        Fields of the kernel's configuration that have these values.
    vgpr, lds, scratch, spills : int
        At most so many vector registers, bytes of shared memory, bytes of scratch, spilled registers.
    occupancy : float
        At least so many waves for each SIMD, as registers and shared memory allow.
    vector_per_matrix : float
        At most so many vector and transcendental instructions for each matrix instruction of the main loop.
    fma_share : float
        At least this share of FMAs among the vector operations of the main loop.
    """

    kernel: Text
    arch: Text = "gfx*"
    dtypes: Annotated[list[Dtype], Field(min_length=1)] | None = None
    config: Annotated[dict[Name, Scalar], Field(min_length=1)] | None = None
    vgpr: Count | None = None
    lds: Natural | None = None
    scratch: Natural | None = None
    spills: Natural | None = None
    occupancy: Positive | None = None
    vector_per_matrix: Positive | None = None
    fma_share: Annotated[float, Field(gt=0, le=1)] | None = None
    reason: Text | None = None

    @model_validator(mode="after")
    def _tight_or_with_a_reason(self) -> KernelBudget:
        if all(getattr(self, name) is None for name in BUDGET_LIMITS):
            raise ValueError(f"give at least one of {', '.join(BUDGET_LIMITS)}")
        looser = [name for name in ("scratch", "spills") if getattr(self, name)]
        if looser and self.reason is None:
            raise ValueError(f"{' and '.join(looser)} above 0 must have a reason")
        return self


class Matrix(Model):
    """A whole matrix file."""

    version: Literal[1]
    registry: Text
    defaults: Settings | None = None
    operations: dict[str, Settings] | None = None
    budgets: Annotated[dict[Name, KernelBudget], Field(min_length=1)] | None = None
    groups: Annotated[dict[Name, Group], Field(min_length=1)]
    known_failures: Annotated[list[KnownFailure], Field(min_length=1)] | None = None
