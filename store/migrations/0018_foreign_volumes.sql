-- What a host holds of volumes that no row places there: shown and left alone, until somebody adopts them.
alter table hosts add column foreign_volumes jsonb not null default '[]';
