"""An ensemble has no code: config.pbtxt describes it."""
