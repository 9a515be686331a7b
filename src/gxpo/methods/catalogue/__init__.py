"""Families of methods, a module for each row of docs/methods.md; `reconstructed` has those made from an abstract."""
