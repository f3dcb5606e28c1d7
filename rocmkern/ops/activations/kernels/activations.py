"""The activation functions that end a product, chosen when the kernel runs: they cost nothing in its main loop."""

from rocmkern import tile as T

#: Numbers of the activations in a launch; 0 is none.
SILU, GELU, GELU_TANH, RELU = 1, 2, 3, 4


@T.device
def activate(tile, activation):
    if activation == SILU:
        tile = T.silu(tile)
    if activation == GELU:
        tile = T.gelu(tile)
    if activation == GELU_TANH:
        tile = T.gelu_tanh(tile)
    if activation == RELU:
        tile = T.relu(tile)
    return tile
