/*
 * Plain implementations of the CMSIS-NN functions that generated code calls, by its documentation.
 *
 * Where the library is absent, tests use them to find arguments in a wrong position, of a wrong sign
 * or in a wrong unit. They use no working memory: only the library can test that it is large enough.
 */
#include "arm_nnfunctions.h"

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t most(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* value * multiplier * 2^(shift - 31): a rounding doubling high multiply, then a rounding shift. */
static int32_t requantized(int32_t value, int32_t multiplier, int32_t shift) {
    const int64_t shifted = (int64_t)value * (INT64_C(1) << most(shift, 0));
    const int64_t high = (shifted * multiplier + (INT64_C(1) << 30)) >> 31;
    const int64_t divisor = INT64_C(1) << most(-shift, 0);
    const int64_t magnitude = ((high < 0 ? -high : high) + divisor / 2) / divisor;
    return (int32_t)(high < 0 ? -magnitude : magnitude);
}

static int8_t clamped(int32_t value, cmsis_nn_activation limits) {
    return (int8_t)most(limits.min, least(limits.max, value));
}

/* Return the address of element `[n][y][x][c]` of a tensor; NULL outside the image. */
static const int8_t *pixel(const int8_t *data, const cmsis_nn_dims *dims, int32_t n, int32_t y,
                           int32_t x, int32_t c) {
    if (y < 0 || y >= dims->h || x < 0 || x >= dims->w) {
        return NULL;
    }
    return data + ((n * dims->h + y) * dims->w + x) * dims->c + c;
}

arm_cmsis_nn_status arm_convolve_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *upscale_dims,
    const cmsis_nn_dims *output_dims, int8_t *output) {
    const cmsis_nn_conv_params *const p = parameters;
    const int32_t depth = filter_dims->c, group = output_dims->c / (input_dims->c / depth);
    (void)ctx;
    if (upscale_dims != NULL || bias_dims->c != output_dims->c || filter_dims->n != output_dims->c) {
        return ARM_CMSIS_NN_ARG_ERROR;
    }
    for (int32_t n = 0; n < output_dims->n; ++n)
    for (int32_t y = 0; y < output_dims->h; ++y)
    for (int32_t x = 0; x < output_dims->w; ++x)
    for (int32_t o = 0; o < output_dims->c; ++o) {
        int32_t sum = bias[o];
        for (int32_t i = 0; i < filter_dims->h; ++i)
        for (int32_t j = 0; j < filter_dims->w; ++j) {
            const int32_t top = y * p->stride.h - p->padding.h + i * p->dilation.h;
            const int32_t left = x * p->stride.w - p->padding.w + j * p->dilation.w;
            const int8_t *const in = pixel(input, input_dims, n, top, left, o / group * depth);
            for (int32_t c = 0; in != NULL && c < depth; ++c) {
                sum += (in[c] + p->input_offset) * *pixel(filter, filter_dims, o, i, j, c);
            }
        }
        sum = requantized(sum, scaling->multiplier[o], scaling->shift[o]) + p->output_offset;
        *output++ = clamped(sum, p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

#define CONVOLUTION(name)                                                                          \
    arm_cmsis_nn_status name(                                                                      \
        const cmsis_nn_context *ctx, const cmsis_nn_conv_params *parameters,                       \
        const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,         \
        const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,               \
        const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,     \
        int8_t *output) {                                                                          \
        return arm_convolve_s8(ctx, parameters, scaling, input_dims, input, filter_dims, filter,   \
                               bias_dims, bias, NULL, output_dims, output);                        \
    }
CONVOLUTION(arm_convolve_1x1_s8_fast)
CONVOLUTION(arm_convolve_1x1_s8)
CONVOLUTION(arm_convolve_1_x_n_s8)

arm_cmsis_nn_status arm_depthwise_conv_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output) {
    const cmsis_nn_dw_conv_params *const p = parameters;
    (void)ctx;
    if (bias_dims->c != output_dims->c || input_dims->c * p->ch_mult != output_dims->c) {
        return ARM_CMSIS_NN_ARG_ERROR;
    }
    for (int32_t n = 0; n < output_dims->n; ++n)
    for (int32_t y = 0; y < output_dims->h; ++y)
    for (int32_t x = 0; x < output_dims->w; ++x)
    for (int32_t o = 0; o < output_dims->c; ++o) {
        int32_t sum = bias[o];
        for (int32_t i = 0; i < filter_dims->h; ++i)
        for (int32_t j = 0; j < filter_dims->w; ++j) {
            const int32_t top = y * p->stride.h - p->padding.h + i * p->dilation.h;
            const int32_t left = x * p->stride.w - p->padding.w + j * p->dilation.w;
            const int8_t *const in = pixel(input, input_dims, n, top, left, o / p->ch_mult);
            if (in != NULL) {
                sum += (*in + p->input_offset) * *pixel(filter, filter_dims, 0, i, j, o);
            }
        }
        sum = requantized(sum, scaling->multiplier[o], scaling->shift[o]) + p->output_offset;
        *output++ = clamped(sum, p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

#define DEPTHWISE(name)                                                                            \
    arm_cmsis_nn_status name(                                                                      \
        const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *parameters,                    \
        const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,         \
        const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,               \
        const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,     \
        int8_t *output) {                                                                          \
        return arm_depthwise_conv_s8(ctx, parameters, scaling, input_dims, input, filter_dims,     \
                                     filter, bias_dims, bias, output_dims, output);                \
    }
DEPTHWISE(arm_depthwise_conv_3x3_s8)
DEPTHWISE(arm_depthwise_conv_s8_opt)

/* Multiply rows by rows of weights, which have one multiplier (`step` 0) or one each (`step` 1). */
static arm_cmsis_nn_status rows_times(
    const cmsis_nn_fc_params *p, const int32_t *multiplier, const int32_t *shift, int32_t step,
    int32_t rows, int32_t depth, int32_t outputs, const int8_t *input, const int8_t *weights,
    const int32_t *bias, int8_t *output) {
    for (int32_t row = 0; row < rows; ++row)
    for (int32_t o = 0; o < outputs; ++o) {
        int32_t sum = bias == NULL ? 0 : bias[o];
        for (int32_t i = 0; i < depth; ++i) {
            sum += (input[row * depth + i] + p->input_offset)
                   * (weights[o * depth + i] + p->filter_offset);
        }
        sum = requantized(sum, multiplier[o * step], shift[o * step]) + p->output_offset;
        *output++ = clamped(sum, p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_fully_connected_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_fc_params *parameters,
    const cmsis_nn_per_tensor_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output) {
    (void)ctx, (void)bias_dims;
    return rows_times(parameters, &scaling->multiplier, &scaling->shift, 0, input_dims->n,
                      filter_dims->n, output_dims->c, input, filter, bias, output);
}

arm_cmsis_nn_status arm_fully_connected_per_channel_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_fc_params *parameters,
    const cmsis_nn_per_channel_quant_params *scaling, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output) {
    (void)ctx, (void)bias_dims;
    return rows_times(parameters, scaling->multiplier, scaling->shift, 1, input_dims->n,
                      filter_dims->n, output_dims->c, input, filter, bias, output);
}

arm_cmsis_nn_status arm_batch_matmul_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_bmm_params *parameters,
    const cmsis_nn_per_tensor_quant_params *scaling, const cmsis_nn_dims *left_dims,
    const int8_t *left, const cmsis_nn_dims *right_dims, const int8_t *right,
    const cmsis_nn_dims *output_dims, int8_t *output) {
    (void)ctx;
    if (parameters->adj_x || parameters->adj_y || left_dims->c != right_dims->c) {
        return ARM_CMSIS_NN_NO_IMPL_ERROR;
    }
    return rows_times(&parameters->fc_params, &scaling->multiplier, &scaling->shift, 0,
                      output_dims->w, left_dims->c, output_dims->c, left, right, NULL, output);
}

static arm_cmsis_nn_status pooled(const cmsis_nn_pool_params *p, const cmsis_nn_dims *input_dims,
                                  const int8_t *input, const cmsis_nn_dims *filter_dims,
                                  const cmsis_nn_dims *output_dims, int8_t *output, bool average) {
    for (int32_t n = 0; n < output_dims->n; ++n)
    for (int32_t y = 0; y < output_dims->h; ++y)
    for (int32_t x = 0; x < output_dims->w; ++x)
    for (int32_t c = 0; c < output_dims->c; ++c) {
        int32_t sum = 0, count = 0, greatest = INT8_MIN;
        for (int32_t i = 0; i < filter_dims->h; ++i)
        for (int32_t j = 0; j < filter_dims->w; ++j) {
            const int32_t top = y * p->stride.h - p->padding.h + i;
            const int32_t left = x * p->stride.w - p->padding.w + j;
            const int8_t *const in = pixel(input, input_dims, n, top, left, c);
            if (in != NULL) {
                sum += *in;
                count += 1;
                greatest = most(greatest, *in);
            }
        }
        const int32_t mean = (sum > 0 ? sum + count / 2 : sum - count / 2) / count;
        *output++ = clamped(average ? mean : greatest, p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_avgpool_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_pool_params *parameters,
    const cmsis_nn_dims *input_dims, const int8_t *input, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output) {
    (void)ctx;
    return pooled(parameters, input_dims, input, filter_dims, output_dims, output, true);
}

arm_cmsis_nn_status arm_max_pool_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_pool_params *parameters,
    const cmsis_nn_dims *input_dims, const int8_t *input, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output) {
    (void)ctx;
    return pooled(parameters, input_dims, input, filter_dims, output_dims, output, false);
}

arm_cmsis_nn_status arm_elementwise_add_s8(
    const int8_t *left, const int8_t *right, int32_t left_offset, int32_t left_mult,
    int32_t left_shift, int32_t right_offset, int32_t right_mult, int32_t right_shift,
    int32_t common_shift, int8_t *output, int32_t out_offset, int32_t out_mult, int32_t out_shift,
    int32_t out_min, int32_t out_max, int32_t size) {
    const cmsis_nn_activation limits = {out_min, out_max};
    for (int32_t i = 0; i < size; ++i) {
        const int32_t a = (left[i] + left_offset) * (1 << common_shift);
        const int32_t b = (right[i] + right_offset) * (1 << common_shift);
        const int32_t sum = requantized(a, left_mult, left_shift)
                            + requantized(b, right_mult, right_shift);
        output[i] = clamped(requantized(sum, out_mult, out_shift) + out_offset, limits);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_elementwise_mul_s8(
    const int8_t *left, const int8_t *right, int32_t left_offset, int32_t right_offset,
    int8_t *output, int32_t out_offset, int32_t out_mult, int32_t out_shift, int32_t out_min,
    int32_t out_max, int32_t size) {
    const cmsis_nn_activation limits = {out_min, out_max};
    for (int32_t i = 0; i < size; ++i) {
        const int32_t product = (left[i] + left_offset) * (right[i] + right_offset);
        output[i] = clamped(requantized(product, out_mult, out_shift) + out_offset, limits);
    }
    return ARM_CMSIS_NN_SUCCESS;
}
