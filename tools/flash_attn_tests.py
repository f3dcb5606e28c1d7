"""Run the forward part of flash-attn's own tests against `rocmkern.flash_attn`.

    python tools/flash_attn_tests.py PATH/tests/test_flash_attn.py --device cpu --rows 300 --seed 1
    python tools/flash_attn_tests.py PATH/tests/test_flash_attn.py --device cuda --rows 3000 --seed 1

PATH is a checkout of Dao-AILab/flash-attention; nothing is fetched. `COMMIT` is the one that this was written for,
whose file has the checksum `SHA256`; another file is run too, and the report says so. PyTorch, pytest and einops are
needed.

The file is run as it is, with these changes:

* ``flash_attn`` is our module. What the tests take from its other modules, and from none of its kernels (padding of
  batches, rotation by tables), is written here in PyTorch.
* ``device = "cuda"`` is the device asked for. A test's name, parameters and tolerances are its own.
* Statements that need gradients are left out: those that call ``torch.autograd.grad`` or ``backward``, and all that
  follow from their results. Our functions run under ``torch.no_grad()``.

Of all sets of parameters of a test, those that need what we do not have are left out, with the reason; of the others a
sample is drawn with a seed, from each test as many as from the others. ``--keys`` leaves out what has more queries
times keys: the reference of the tests writes them all down.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import itertools
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drawn_tests

COMMIT = "0251105a2fb19d2957484b7f023cd8c115286ced"
SHA256 = "71984b919237657da4c8dea7a14728104c848a6122dc551302dbd8470745e878"
#: Tests that are left out, and why.
LEFT_OUT = {
    "test_flash_attn_race_condition": "repeats a backward pass",
    "test_flash_attn_bwd_overflow": "backward only",
    "test_flash_attn_bwd_transpose": "backward only",
    "test_flash_attn_bwd_varlen_overflow": "backward only",
    "test_flash_attn_deterministic": "repeats a backward pass",
    "test_flash_attn_varlen_deterministic": "repeats a backward pass",
    "test_flash_attn_varlen_paged_kv_num_splits": "calls a private function",
    "test_flash_attn_generator_arg_must_be_none": "calls the extension module",
    "test_flash_attn_kvcache_paged_block_table_bounds": "expects RuntimeError where ours is an ArgumentError",
}


# What the tests take from modules beside the functions.


def unpad_input(hidden: Any, mask: Any, unused_mask: Any = None) -> tuple[Any, ...]:
    """Rows of a padded batch where the mask is true, their indices, cumulative and longest lengths, and lengths."""
    import torch

    seen = mask if unused_mask is None else mask + unused_mask
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(seen.flatten(), as_tuple=False).flatten()
    cumulative = torch.nn.functional.pad(torch.cumsum(seen.sum(-1, dtype=torch.int32), 0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, cumulative, int(seen.sum(-1).max()), lengths


def pad_input(rows: Any, indices: Any, batch: int, length: int) -> Any:
    """The padded batch of such rows, zeros elsewhere."""
    out = rows.new_zeros(batch * length, *rows.shape[1:])
    out[indices] = rows
    return out.unflatten(0, (batch, length))


def apply_rotary_emb(x: Any, cos: Any, sin: Any, interleaved: bool = False, seqlen_offsets: Any = 0, **_: Any) -> Any:
    """Rows ``[B, S, H, D]`` rotated by rows of tables, from a row for each sequence on."""
    import torch

    rows, pairs = torch.arange(x.shape[1], device=x.device), cos.shape[1]
    places = (torch.as_tensor(seqlen_offsets, device=x.device).reshape(-1, 1) + rows).expand(x.shape[0], -1).long()
    c, s = (table[places].unsqueeze(2).float() for table in (cos, sin))
    turned, out = x[..., : 2 * pairs].float(), x.clone()
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    new = (a * c - b * s, b * c + a * s)
    new = torch.stack(new, -1).flatten(-2) if interleaved else torch.cat(new, -1)
    out[..., : 2 * pairs] = new.to(x.dtype)
    return out


def stand_ins() -> dict[str, types.ModuleType]:
    """``flash_attn`` and its modules as the test file imports them."""
    import torch

    from rocmkern import flash_attn

    functions = {name: torch.no_grad()(getattr(flash_attn, name)) for name in flash_attn.__all__}
    contents: dict[str, dict[str, Any]] = {
        "flash_attn": functions,
        "flash_attn.bert_padding": {"pad_input": pad_input, "unpad_input": unpad_input},
        "flash_attn.flash_attn_interface": {"_get_block_size_n": None, "USE_TRITON_ROCM": False},
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": apply_rotary_emb},
    }
    modules = {name: types.ModuleType(name) for name in contents}
    for name, names in contents.items():
        vars(modules[name]).update(names)
    return modules


# The test file.


class ForwardOnly(ast.NodeTransformer):
    """Leave out what needs gradients, and name another device."""

    def __init__(self, device: str):
        self.device = device
        self.tainted: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.tainted = set()
        node.body = self._kept(node.body)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant(self.device), node) if node.value == "cuda" else node

    def _kept(self, body: list[ast.stmt]) -> list[ast.stmt]:
        kept = []
        for statement in body:
            if isinstance(statement, (ast.If, ast.For, ast.With)) and not self._needs_gradients(_head(statement)):
                statement.body = self._kept(statement.body) or [ast.Pass()]
                if isinstance(statement, ast.If):
                    statement.orelse = self._kept(statement.orelse)
                kept.append(statement)
            elif self._needs_gradients(statement):
                stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
                self.tainted |= {name.id for name in stored}
            else:
                kept.append(statement)
        return kept

    def _needs_gradients(self, node: ast.AST) -> bool:
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute) and (
                each.attr == "backward" or ast.unparse(each) == "torch.autograd.grad"
            ):
                return True
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id in self.tainted:
                return True
        return False


def _head(statement: ast.If | ast.For | ast.With) -> ast.AST:
    if isinstance(statement, ast.If):
        return statement.test
    return statement.iter if isinstance(statement, ast.For) else ast.Tuple([i.context_expr for i in statement.items])


def loaded(path: Path, device: str) -> dict[str, Any]:
    """The names of the test file, after its changes."""
    import torch

    if device == "cpu":
        torch.cuda.get_device_capability = lambda *_: (9, 0)  # it is asked which architecture the card has
    sys.modules.update(stand_ins())
    tree = ForwardOnly(device).visit(ast.parse(path.read_text(encoding="utf-8")))
    names: dict[str, Any] = {"__name__": "flash_attn_tests"}
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), names)
    return names


def rows_of(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Every set of parameters of a test, by its marks."""
    axes = []
    for mark in test.pytestmark:
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            names = [name.strip() for name in names.split(",")]
            axes.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in values])
    for choice in itertools.product(*axes):
        yield functools.reduce(lambda a, b: {**a, **b}, choice, {})


def reason_against(row: dict[str, Any], most: int) -> str | None:
    """Why a set of parameters is left out."""
    if row.get("dropout_p", 0.0) > 0:
        return "dropout"
    queries = row.get("seqlen_q", row.get("seqlen", 1))
    if most and queries * row.get("seqlen_k", queries) > most:
        return f"more than {most} queries times keys"
    return None


def main() -> int:
    """Draw, run, report; 1 where a test fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="tests/test_flash_attn.py of a checkout")
    drawn_tests.add_arguments(parser, 3000)
    parser.add_argument("--keys", type=int, default=0, help="most queries times keys (default: any)")
    options = parser.parse_args()
    import pytest

    if hashlib.sha256(options.file.read_bytes()).hexdigest() != SHA256:
        print(f"another file than that of commit {COMMIT}")
    names = loaded(options.file, options.device)
    begin = time.monotonic()
    left_out, groups = Counter[str](), []
    tests = {n: f for n, f in names.items() if n.startswith("test_") and options.test in n}
    for name, test in tests.items():
        if name in LEFT_OUT:
            left_out[f"{name}: {LEFT_OUT[name]}"] += 1
            continue
        possible = []
        for row in rows_of(test):
            reason = reason_against(row, options.keys)
            left_out.update([reason] if reason else [])
            possible += [] if reason else [row]
        groups.append([(name, row) for row in possible])
    rows = drawn_tests.drawn(groups, options.seed, options.rows)
    counts: dict[str, Counter[str]] = {}
    end = begin + options.seconds if options.seconds else float("inf")
    for name, row in rows:
        outcome = "not begun, for the time"
        if time.monotonic() < end:
            outcome = _outcome(pytest, name, names[name], row)
        counts.setdefault(name, Counter())[outcome] += 1
    total = drawn_tests.report(options, len(rows), counts, {"left out": left_out})
    return 1 if total["failed"] else 0


def _outcome(pytest: Any, name: str, test: Callable[..., Any], row: dict[str, Any]) -> str:
    """passed, failed or skipped by the test itself."""
    import contextlib
    import io

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            test(**row)
    except pytest.skip.Exception:
        return "skipped by itself"
    except Exception:
        print(f"{name}({', '.join(f'{k}={v!r}' for k, v in row.items())})")
        traceback.print_exc(limit=-2, file=sys.stdout)
        return "failed"
    return "passed"


if __name__ == "__main__":
    sys.exit(main())
