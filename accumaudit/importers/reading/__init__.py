"""Files, lines, cells and numbers, whatever the bytes are."""
