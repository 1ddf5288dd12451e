"""How convolutions are computed: one method on one kind of device per module.

Loaded by `hetero.ops.convolution` when first needed, not with hetero.
"""
