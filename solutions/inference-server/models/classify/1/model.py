"""An ensemble has no code of its own: config.pbtxt says all."""
