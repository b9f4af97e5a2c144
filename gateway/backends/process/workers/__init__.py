"""Worker processes: parent, child, channel between them, standbys, launcher, guardian."""
