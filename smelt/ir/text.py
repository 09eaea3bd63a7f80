"""The text format of the IR, which `smelt inspect --ir` prints and the parser reads back exactly.

    smelt-ir 1
    graph "kws" {
      input %x: i8[1,9,9,3] q(0.0235, -128)
      const %w: i8[8,3,3,3] q(@52c1e5cd7a3a0ed5, 0, axis=0) = @9b74c9897bac770f
      const %b: i32[2] = [-3, 17]
      %y: i8[1,4,4,8] q(0.05, -3) = Conv2D(%x, %w, _) {stride=(2, 2)} rounding=tflm
        from CONV_2D #0 "conv/Relu"
      output %y
    }

White space separates tokens and has no other meaning. In the grammar, `name` is a value's name
after `%`, bare or in JSON's quotes, and `array` is either `[element, ...]` in row-major order or
`@digest`:

    text       = "smelt-ir" version graph
    graph      = "graph" string "{" { statement } "}"
    statement  = "input" typed | "state" typed "=" array | "const" typed "=" array
               | typed { "," typed } "=" operator "(" [ operand { "," operand } ] ")"
                 [ "{" field "=" attribute { "," field "=" attribute } "}" ]
                 [ "rounding" "=" word ] "from" kind "#" index [ string ]
               | "next" name "=" name | "output" name
    typed      = name ":" dtype "[" [ size { "," size } ] "]"
                 [ "q(" scale "," zero_point [ "," "axis" "=" index ] ")" ]
    operand    = name | "_"
    scale      = float | array       (float32; hexadecimal if only a double represents it)
    zero_point = int | array         (a single integer applies to all scales)
    attribute  = "none" | "true" | "false" | int | float | string | word of an enumeration
               | "(" [ attribute { "," attribute } ] ")" | graph

The types of an operator's dataclass fields decide how its attributes are parsed. A field with its
default value is omitted, and so is the origin's name if it is that of the first result. `next` says
which value becomes the state of the next inference. Small arrays are printed inline; others are
named by digest and stored beside the text.
"""

from smelt.ir.parser import parse_graph
from smelt.ir.printer import print_graph

__all__ = ["parse_graph", "print_graph"]
