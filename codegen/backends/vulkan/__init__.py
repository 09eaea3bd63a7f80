"""Backend `vulkan`: compute shaders for GPUs; tensors lie in memory as the CPU has them.

It drives an accelerator, and so stands above `codegen.accelerator`.
May import `codegen.accelerator`, `codegen.schedule`, `codegen.partition`, `codegen.passes`,
`codegen.arena`, `codegen.lower`, `codegen.text`, `targets`, `ops` and `ir`; nothing may import
it, since targets name it.
"""
