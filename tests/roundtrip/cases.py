"""Every case: name -> a factory that makes the same batch in each process."""

from . import cases_arrays, cases_images, cases_rows, cases_tensors, cases_values
from .models import register_all

_TABLES = [module.CASES for module in (cases_arrays, cases_rows, cases_tensors, cases_values, cases_images)]
CASES = {name: make for table in _TABLES for name, make in table.items()}
if len(CASES) != sum(map(len, _TABLES)):
    raise ValueError("two cases have one name")

register_all()
