"""How a call is decided and carried out, whatever the operation."""
