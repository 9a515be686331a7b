"""Ground that every other package stands on: errors, user code, processes, servers, files of others, pages."""
