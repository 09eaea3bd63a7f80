"""A scheduled and planned network as text: C files, firmware around them, libraries for export.

May import `codegen.accelerator`, `codegen.schedule`, `codegen.lower`, `codegen.arena`,
`codegen.text`, `targets` and `ir`; `api`, `proof` and `cli` may import it.
"""
