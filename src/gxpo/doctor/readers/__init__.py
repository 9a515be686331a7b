"""One module for each format that training runs leave: file -> `found.Found`, the trainer's own keys untouched."""
