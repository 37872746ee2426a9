# Prefect on this machine: server, pools and workers on loopback. State lives under .services/.

up: $(READY) ## start server, pools and workers
	@$(BIN)/python deployments/services.py up $(if $(PORT),--port $(PORT))

deploy: $(READY) $(CORPUS) ## register the deployments
	@$(BIN)/python deployments/services.py deploy

down: ## stop server and workers
	@$(PYTHON) deployments/services.py down

.PHONY: up deploy down
