"""The models of a file of results: what each of its values must be, so that whoever reads it need not ask.

Ranges are those that a measurement can have; beyond them a file is damaged. What older files of the same format lack
may be left out, but is not null where it stands; its default here only says so, readers look whether it is there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from rocmkern.matrix.schema import Category, MemoryVariant, Model, Target

FORMAT = 1


def _rate(value: float) -> float:
    if value and not 1e-9 <= value <= 1e24:
        raise ValueError("must be 0 or from 1e-9 to 1e24")
    return value


def _date(value: str) -> str:
    datetime.fromisoformat(value)
    return value


def _together(record: Any, *names: str) -> Any:
    """The record, where it gives all or none of some fields."""
    if 0 < len(record.model_fields_set.intersection(names)) < len(names):
        raise ValueError(f"give all of {', '.join(names)}, or none")
    return record


Word = Annotated[str, StringConstraints(min_length=1)]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Extent = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, ge=1e-12, le=1e9)]
# A clock that ticks coarsely may not have ticked.
Sample = Annotated[float, Field(ge=0, le=1e9)]
Samples = Annotated[list[Sample], Field(min_length=1)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Rate = Annotated[float, AfterValidator(_rate)]
Scalar = bool | Integer | Number | str | None


class DeviceRecord(Model):
    """What a target was."""

    arch: str
    name: str
    emulated: bool = False


class EnvironmentRecord(Model):
    """Where and when a run took place."""

    label: str
    time: Annotated[str, AfterValidator(_date)]
    platform: str
    python: str
    versions: dict[str, str]
    devices: dict[Target, DeviceRecord]


class OutputRecord(Model):
    """An output that was compared."""

    output: Word
    error: NotNegative
    bound: NotNegative
    share: NotNegative
    parts: str
    e: NotNegative = 0.0
    ulp: NotNegative = 0.0

    @model_validator(mode="after")
    def _parts_of_the_bound(self) -> OutputRecord:
        return _together(self, "e", "ulp")


class RoofRecord(Model):
    """What the target can do at most, as far as it was measured."""

    byte_per_s: Rate = 0.0
    flop_per_s: Rate = 0.0
    no_peak: Word = "unknown"


class PeerRecord(Model):
    """Another implementation: its times, or why there are none."""

    ratio: Rate = 0.0
    wall_ratio: Rate = 0.0
    cpu_s: Sample = 0.0
    wall_s: Seconds = 1.0
    bar: Rate | None = None
    samples: Samples = Field(default_factory=list)
    unavailable: Word = "unknown"

    @model_validator(mode="after")
    def _timed_or_not(self) -> PeerRecord:
        if len({"ratio", "unavailable"} & self.model_fields_set) != 1:
            raise ValueError("give exactly one of ratio, unavailable")
        return self


class SpeedRecord(Model):
    """How long a benchmark row took."""

    wall_s: Seconds
    cpu_s: Sample = 0.0
    spread: NotNegative = 0.0
    rounds: Annotated[int, Field(ge=1)] = 1
    counts: Literal["cpu_s", "wall_s"] = "wall_s"
    samples: Samples = Field(default_factory=list)
    flop_per_s: Rate = 0.0
    byte_per_s: Rate = 0.0
    roof: RoofRecord = RoofRecord()
    peers: dict[str, PeerRecord]

    @model_validator(mode="after")
    def _samples_of_something(self) -> SpeedRecord:
        return _together(self, "samples", "counts")


class ResultRecord(Model):
    """One case on one target."""

    case: Word
    operation: Word
    group: Word
    category: Category
    dtype: Word
    why: str
    dims: dict[str, Extent | list[Extent]]
    features: dict[str, Scalar | list[Scalar]]
    memory: MemoryVariant | dict[str, MemoryVariant]
    target: Target
    outcome: Literal["passed", "failed", "skipped"]
    reason: str = ""
    outputs: list[OutputRecord] = Field(default_factory=list)
    speed: SpeedRecord | None = None
    code: list[Sha256] = Field(default_factory=list)


class ResultsFile(Model):
    """A whole file."""

    format: Literal[1]
    environment: EnvironmentRecord
    labels: dict[str, dict[str, str]]
    results: list[ResultRecord]
