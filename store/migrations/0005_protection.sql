-- A VM that is protected is neither deleted nor rebuilt (L-R9).
alter table vms add column termination_protection boolean not null default false;
