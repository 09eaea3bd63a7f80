"""What commands show: tables for the terminal, pages of HTML, records for machines.

May import everything; `cli` and `bench` may import it.
"""
