"""TensorFlow Lite frontend: a converter for each operator, in one table for each family.

May import `frontend`, `ops` and `ir`; `frontend`, `api` and `cli` may import it.
"""

from smelt.frontend.tflite.importer import CONVERTERS, SPECIAL_CASES, load
from smelt.frontend.tflite.operation import Converter, TfliteOperation
from smelt.frontend.tflite.options import OperatorOptions

__all__ = ["CONVERTERS", "SPECIAL_CASES", "Converter", "OperatorOptions", "TfliteOperation", "load"]
