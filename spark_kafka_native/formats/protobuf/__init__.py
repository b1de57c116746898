"""Protocol buffers: messages of any descriptor as structs, and back.

Bytes and Arrow columns are turned into each other by `ptars`, a library in Rust, under a descriptor that
`wire` makes for one type: it has only the fields of that type, and each of them says whether it was present.
Everything else is done here on whole columns: enums, maps, presence, ranges, well-known types.
"""
