/* The functions of CMSIS-NN 7 that generated code calls; see arm_nn_types.h. */
#ifndef ARM_NNFUNCTIONS_H
#define ARM_NNFUNCTIONS_H

#include "arm_nn_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* functions */
arm_cmsis_nn_status arm_convolve_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *upscale_dims,
    const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_convolve_1x1_s8_fast(
    const cmsis_nn_context *ctx, const cmsis_nn_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_convolve_1x1_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_convolve_1_x_n_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_depthwise_conv_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_depthwise_conv_3x3_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_depthwise_conv_s8_opt(
    const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_fully_connected_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_fc_params *parameters,
    const cmsis_nn_per_tensor_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_fully_connected_per_channel_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_fc_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output);

arm_cmsis_nn_status arm_batch_matmul_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_bmm_params *parameters,
    const cmsis_nn_per_tensor_quant_params *scaling, const cmsis_nn_dims *left_dims,
    const int8_t *left, const cmsis_nn_dims *right_dims, const int8_t *right,
    const cmsis_nn_dims *output_dims, int8_t *output);

arm_cmsis_nn_status arm_avgpool_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_pool_params *parameters,
    const cmsis_nn_dims *input_dims, const int8_t *input, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output);

arm_cmsis_nn_status arm_max_pool_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_pool_params *parameters,
    const cmsis_nn_dims *input_dims, const int8_t *input, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output);

arm_cmsis_nn_status arm_elementwise_add_s8(
    const int8_t *left, const int8_t *right, int32_t left_offset, int32_t left_mult,
    int32_t left_shift, int32_t right_offset, int32_t right_mult, int32_t right_shift,
    int32_t common_shift, int8_t *output, int32_t out_offset, int32_t out_mult, int32_t out_shift,
    int32_t out_min, int32_t out_max, int32_t size);

arm_cmsis_nn_status arm_elementwise_mul_s8(
    const int8_t *left, const int8_t *right, int32_t left_offset, int32_t right_offset,
    int8_t *output, int32_t out_offset, int32_t out_mult, int32_t out_shift, int32_t out_min,
    int32_t out_max, int32_t size);

void arm_softmax_s8(
    const int8_t *input, int32_t rows, int32_t row_size, int32_t mult, int32_t shift,
    int32_t diff_min, int8_t *output);

arm_cmsis_nn_status arm_pad_s8(
    const int8_t *input, int8_t *output, int8_t value, const cmsis_nn_dims *size,
    const cmsis_nn_dims *before, const cmsis_nn_dims *after);

arm_cmsis_nn_status arm_transpose_s8(
    const int8_t *input, int8_t *output, const cmsis_nn_dims *input_dims,
    const cmsis_nn_dims *output_dims, const cmsis_nn_transpose_params *parameters);

void arm_concatenation_s8_x(
    const int8_t *input, uint16_t input_x, uint16_t input_y, uint16_t input_z, uint16_t input_w,
    int8_t *output, uint16_t output_x, uint32_t offset_x);

/* end of functions */

#ifdef __cplusplus
}
#endif

#endif
