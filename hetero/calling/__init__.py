"""How a call of any operation is planned and run.

What is remembered is dropped when what it depends on changes; see `hetero.tables`.
"""

from hetero import tables
from hetero.host.compiled import loop_compiler

loop_compiler.on_ready(tables.forget)
