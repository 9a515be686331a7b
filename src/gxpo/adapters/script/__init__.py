"""Reading of Python scripts without running them: values, statements, and what the calls of a training mean."""
