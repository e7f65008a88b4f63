"""Daily work with the files of volumes: list, copy, move, remove, measure; the library behind `glustx fs`."""
