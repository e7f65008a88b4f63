"""Provisioning of VM images on a volume: make, zero, inspect and verify them; the library behind `glustx provision`."""
