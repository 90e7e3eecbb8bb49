-- The certificate authorities' public keys; the private ones lie beside the master key, never here (S-41).
create table ssh_cas (
    kind text primary key check (kind in ('host')),
    public_key text not null,
    since timestamptz not null default now()
);

create sequence host_certificate_serial;

-- What was signed. An entry outlives its VM: a destroyed VM's certificates stay known as revoked.
create table host_certificates (
    serial bigint primary key,
    vm_id text not null,
    host_id text not null,
    public_key text not null,
    certificate text not null,
    issued_at timestamptz not null default now(),
    valid_until timestamptz not null,
    revoked_at timestamptz
);
create index host_certificates_of_vm on host_certificates (vm_id);
create index host_certificates_revoked on host_certificates (serial) where revoked_at is not null;

-- certified_key: the first key that the VM's host asked a certificate for; no other one is ever signed for the VM.
alter table vms add column certified_key text;
alter table vms add column certificate_serial bigint references host_certificates (serial);
