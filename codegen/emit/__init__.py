"""Output of a scheduled and planned network: C files, firmware, libraries for export.

May import `codegen.accelerator`, `codegen.schedule`, `codegen.lower`, `codegen.arena`,
`codegen.text`, `targets` and `ir`; `api`, `proof` and `cli` may import it.
"""
