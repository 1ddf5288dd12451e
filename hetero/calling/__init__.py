"""How a call of any operation is planned and run.

What is remembered is dropped when what it depends on changes; see `hetero.tables`.
"""
