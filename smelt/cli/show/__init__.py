"""What commands show: tables for the terminal, pages of HTML, records for machines."""
