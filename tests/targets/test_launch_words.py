"""Words of a launch on a GPU: those of a launch that comes into it are others."""

from __future__ import annotations

from rocmkern.targets.gpu import LoadedVariant


class Variant(LoadedVariant):
    """Notes the words that a driver would read; ``within`` is called between filling and starting."""

    within = None

    def __init__(self):
        super().__init__("kernel", 2, 0)
        self.read = []

    def _call(self, grid, stream, parameters):
        if self.within is not None:
            within, self.within = self.within, None
            within()

        def start():
            self.read.append(tuple(parameters.words))
            return (0,)

        return start

    def _fail(self, status):
        raise AssertionError(status)


def test_a_launch_within_a_launch_has_words_of_its_own():
    variant = Variant()
    variant.within = lambda: variant.launch((1, 1, 1), [3, 4])
    variant.launch((1, 1, 1), [1, 2])
    variant.launch((1, 1, 1), [5, 6])
    assert variant.read == [(3, 4), (1, 2), (5, 6)]


def test_a_launch_that_fails_leaves_the_next_one_right():
    variant = Variant()

    def fail():
        raise KeyboardInterrupt

    variant.within = fail
    try:
        variant.launch((1, 1, 1), [1, 2])
    except KeyboardInterrupt:
        variant.launch((1, 1, 1), [5, 6])
    assert variant.read == [(5, 6)]
