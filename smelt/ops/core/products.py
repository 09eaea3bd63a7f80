"""The operators that multiply data by weights.

Their operands are the data, the weights, and a bias where there is one; `activation` follows.
"""

from smelt.ops.core.convolution import Conv2D, DepthwiseConv2D
from smelt.ops.core.convolution_nd import ConvTranspose
from smelt.ops.core.fully_connected import FullyConnected

WeightedProduct = Conv2D | ConvTranspose | DepthwiseConv2D | FullyConnected
BIAS = 2
"""The bias' place among the operands."""
