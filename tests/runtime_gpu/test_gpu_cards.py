"""Cards on the virtual GPU: two of different architectures in one process, and one that nobody knows yet."""

import json

CODE = """
    import json, warnings
    import numpy as np
    warnings.simplefilter("error")
    warnings.filterwarnings("always", category=RuntimeWarning, message="gfx.* is not known")
    import rocmkern
    import vgpu
    from rocmkern.runtime.devices import gpu_devices, open_device
    from rocmkern.runtime.manager import default_manager
    from rocmkern.targets import target_of
    x, q = np.linspace(-1, 1, 66, dtype=np.float32).reshape(2, 33), np.ones((1, 1, 3, 16), np.float16)
    with warnings.catch_warnings(record=True) as said:
        for info in gpu_devices("hip"):
            manager = default_manager(open_device(info))
            made = rocmkern.softmax(manager.from_numpy(x)).to_numpy()
            np.testing.assert_allclose(made, rocmkern.reference.softmax(x), rtol=1e-5)
            k = manager.from_numpy(q)
            np.testing.assert_array_equal(rocmkern.flash_attention(k, k, k).to_numpy(), q)
    compiled = [target_of(open_device(info)).arch for info in gpu_devices("hip")]
    loaded = sorted({(each["device"], each["target"].split("--")[-1]) for each in vgpu.loaded()})
    print(json.dumps([compiled, loaded, [str(each.message) for each in said], vgpu.problems()]))
"""


def test_a_card_beside_an_apu_of_another_architecture_has_code_of_its_own(vgpu, fresh_process):
    output = fresh_process(CODE, VGPU_DEVICES="gfx1100:20GiB,gfx1151:8GiB")
    compiled, loaded, said, problems = json.loads(output.splitlines()[-1])
    assert compiled == ["gfx1100", "gfx1151"]
    assert loaded == [[0, "gfx1100"], [1, "gfx1151"]]
    assert (said, problems) == ([], [])


def test_a_card_that_nobody_knows_runs_the_generic_code_of_its_family(vgpu, fresh_process):
    output = fresh_process(CODE, VGPU_DEVICES="gfx1154:8GiB")
    compiled, loaded, said, problems = json.loads(output.splitlines()[-1])
    assert (compiled, loaded, problems) == (["gfx11-generic"], [[0, "gfx11-generic"]], [])
    (warning,) = said
    assert warning.startswith(
        "gfx1154 is not known to this version of rocmkern; kernels are compiled for gfx11-generic"
    )
