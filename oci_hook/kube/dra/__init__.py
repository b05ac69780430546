"""The node's driver of ResourceClaims (Kubernetes 1.36, DRAConsumableCapacity), a process of the agent on nodes with the setting
`cluster: dra`. Pure: kubelet_messages, allocation, cdi. The others are edges: grpc_server, prepare (ledger, CDI files, API
server), publisher, driver (the loop)."""
