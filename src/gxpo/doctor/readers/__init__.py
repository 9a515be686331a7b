"""One module for each format that training runs leave: file -> `table.Table`, the trainer's own keys untouched."""
