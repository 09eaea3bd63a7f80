"""Backend `vulkan`: compute shaders for GPUs. Tensors have the same layout as on the CPU.

Layer: above `codegen.accelerator`, because this backend implements an accelerator.
May import `codegen.accelerator`, `codegen.schedule`, `codegen.partition`, `codegen.passes`,
`codegen.arena`, `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`. Nothing may import
it: targets refer to it by name.
"""
