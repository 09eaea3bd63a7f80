"""Backend `vulkan`: compute shaders for GPUs. Tensors have the same layout as on the CPU.

It is above `codegen.accelerator`, because it implements an accelerator.
May import `codegen.accelerator`, `codegen.schedule`, `codegen.partition`, `codegen.passes`,
`codegen.arena`, `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; nothing may import
it: targets refer to it by name.
"""
