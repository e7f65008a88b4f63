"""A SCSI device server over the files of a volume: targets, logical units, commands. It knows no transport.

`commands` declares what there is, `unit` runs it, `target` maps logical units to initiators; every other module is the
commands of one chapter of SPC or SBC. Like translators, all of it awaits nothing but the runtime's `Waiter`.
"""
