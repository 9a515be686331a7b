"""Errors that a library logs instead of raising them, heard whatever the process's configuration of logs is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_of(library: str, handler: logging.Handler) -> Iterator[None]:
    """Give a handler all errors that the loggers of a library log meanwhile.

    Levels and switches of its loggers that would hide them (those of the root too) do not hold until the end. Logs are
    the whole process's, so that other threads' errors reach the handler, too.
    """
    manager = logging.getLogger().manager
    names = [library, *(name for name in manager.loggerDict if name.startswith(f"{library}."))]
    loggers = [logging.getLogger(name) for name in names]
    settings = [(logger, logger.disabled, logger.level) for logger in loggers]
    disabled_level = manager.disable
    for logger in loggers:
        logger.disabled = False
        logger.setLevel(min(logger.level or logging.ERROR, logging.ERROR))
    logging.disable(logging.NOTSET)
    loggers[0].addHandler(handler)
    try:
        yield
    finally:
        loggers[0].removeHandler(handler)
        logging.disable(disabled_level)
        for logger, is_disabled, level in settings:
            logger.disabled = is_disabled
            logger.setLevel(level)
