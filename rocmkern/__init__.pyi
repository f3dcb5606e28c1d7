"""Where the public names come from, for type checkers: the same names as `_HOME` in ``__init__.py``."""

from rocmkern import reference as reference
from rocmkern import tile as tile
from rocmkern.ops.attention import decode_attention as decode_attention
from rocmkern.ops.attention import flash_attention as flash_attention
from rocmkern.ops.attention import merge_attention as merge_attention
from rocmkern.ops.linear import linear as linear
from rocmkern.ops.linear import matmul as matmul
from rocmkern.ops.mlp import mlp as mlp
from rocmkern.ops.quantized import dequantize as dequantize
from rocmkern.ops.quantized import dequantize_rms_norm as dequantize_rms_norm
from rocmkern.ops.quantized import quantize as quantize
from rocmkern.ops.quantized import quantized_linear as quantized_linear
from rocmkern.ops.steps import apply_mask as apply_mask
from rocmkern.ops.steps import causal_mask as causal_mask
from rocmkern.ops.steps import qk_scores as qk_scores
from rocmkern.ops.steps import repeat_kv as repeat_kv
from rocmkern.ops.steps import scale as scale
from rocmkern.ops.steps import softmax as softmax
from rocmkern.ops.steps import weighted_values as weighted_values
from rocmkern.runtime.errors import ArgumentError as ArgumentError
from rocmkern.runtime.errors import ArgumentTypeError as ArgumentTypeError
from rocmkern.runtime.errors import ClosedError as ClosedError
from rocmkern.runtime.errors import DeadlineError as DeadlineError
from rocmkern.runtime.errors import DeviceMemoryError as DeviceMemoryError
from rocmkern.runtime.errors import DeviceUnavailableError as DeviceUnavailableError
from rocmkern.runtime.errors import GuardBandError as GuardBandError
from rocmkern.runtime.errors import LeakError as LeakError
from rocmkern.runtime.errors import MatrixError as MatrixError
from rocmkern.runtime.errors import RocmkernError as RocmkernError
from rocmkern.runtime.errors import TargetError as TargetError
from rocmkern.runtime.errors import TileError as TileError
from rocmkern.runtime.manager import ResourceManager as ResourceManager
from rocmkern.runtime.manager import default_manager as default_manager
from rocmkern.runtime.probe import gpu_available as gpu_available
from rocmkern.runtime.probe import gpu_status as gpu_status
from rocmkern.runtime.probe import require_gpu as require_gpu
from rocmkern.runtime.tensor import DeviceTensor as DeviceTensor
from rocmkern.targets import TargetInfo as TargetInfo
from rocmkern.targets import target as target
from rocmkern.targets import use as use
from rocmkern.targets import using as using

__version__: str
