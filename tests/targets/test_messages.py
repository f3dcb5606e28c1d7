"""What a user hears of a kernel that does not compile."""

from __future__ import annotations

from rocmkern.targets.messages import first_message

REPORT = """Failed in nopython mode pipeline (step: nopython frontend)
No implementation of function Function(<built-in function pow>) found for signature:

 >>> pow(Rows(4, f32), int64)

There are 8 candidate implementations:
   - Of which 8 did not match due to:

During: typing of intrinsic-call at /home/me/kernels.py (17)
"""


def test_the_signature_is_part_of_the_message():
    message = first_message(TypeError(REPORT))
    assert "for signature: pow(Rows(4, f32), int64) (line 17 of /home/me/kernels.py)" in message


def test_a_message_without_a_signature_has_no_loose_end():
    assert first_message(TypeError("found for signature:\nnothing else")) == "found for signature"
